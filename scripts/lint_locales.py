"""Each text of locales/en has one at the same place in every other language, and no more. `problems()` -> texts.

That English is what the nodes say needs a ComfyUI: tests/test_locales.py.
"""

from __future__ import annotations

from node_locales import FOLDER, leaves, read

FILES = ("main.json", "nodeDefs.json")


def problems() -> list[str]:
    """Places that a language lacks or has too much."""
    return [found for folder in sorted(FOLDER.iterdir()) for file in FILES for found in _differences(folder.name, file)]


def _differences(language: str, file: str) -> list[str]:
    wanted, found = leaves(read("en", file)).keys(), leaves(read(language, file)).keys()
    differences = (("lacks", wanted - found), ("has too much", found - wanted))
    return [
        f"locales/{language}/{file} {said}: {'.'.join(place)}"
        for said, places in differences
        for place in sorted(places)
    ]
