"""The English locale, written anew from the nodes as a running ComfyUI describes them.

    python scripts/node_locales.py writes locales/en/nodeDefs.json, and names what locales/zh lacks

The frontend reads names and tooltips from these files before it reads a node's own, each under one key: the id of a
socket with every "." as "_", so that fixed sockets of older releases and growing ones of newer have the same key; an
output by its place. A name that is the type is not in a node's entry: it is a type's name, in main.json.

`tests/test_locales.py` compares with the nodes of the ComfyUI at hand and needs no file to be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import command
import layout
import setup

FOLDER = layout.ROOT / "locales"
PREFIX = "H3TE"
GROWING = "COMFY_AUTOGROW_V3"


def english(info: Mapping[str, Any]) -> dict[str, Any]:
    """/object_info of this pack's nodes -> what nodeDefs.json holds."""
    return {node_id: _node(node) for node_id, node in info.items() if node_id.startswith(PREFIX)}


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    inputs = {key.replace(".", "_"): entry for key, entry in _inputs(node["input"])}
    outputs = zip(node["output"], node["output_name"], node["output_tooltips"], strict=True)
    return {
        "display_name": node["display_name"],
        "description": node["description"],
        "inputs": inputs,
        "outputs": {str(i): _output(*output) for i, output in enumerate(outputs)},
    }


def _inputs(kinds: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """(id, name and tooltip) of every socket that a node can have, required ones first."""
    for kind in ("required", "optional"):
        for name, (io_type, *rest) in kinds.get(kind, {}).items():
            facts = rest[0] if rest else {}
            if io_type == GROWING:
                yield from _grown(name, facts["template"])
            else:
                yield name, {"name": facts.get("display_name") or name, "tooltip": facts["tooltip"]}


def _grown(group: str, template: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    (_, facts), *_ = (spec for kind in template["input"].values() for spec in kind.values())
    for i in range(template["max"]):
        name = f"{template['prefix']}{i}"
        yield f"{group}.{name}", {"name": name, "tooltip": facts["tooltip"]}


def _output(io_type: str, name: str, tooltip: str) -> dict[str, str]:
    return {"tooltip": tooltip} if name == io_type else {"name": name, "tooltip": tooltip}


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Every text of a locale file by where it stands."""
    if not isinstance(tree, Mapping):
        return {path: tree}
    return {where: text for key, value in tree.items() for where, text in leaves(value, (*path, key)).items()}


def read(language: str, file: str) -> dict[str, Any]:
    return json.loads((FOLDER / language / file).read_text(encoding="utf-8"))


def write(info: Mapping[str, Any]) -> int:
    """Returns 1 when the Chinese file has other entries than the English one."""
    path = FOLDER / "en" / "nodeDefs.json"
    path.write_text(json.dumps(english(info), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(layout.ROOT)}")
    wanted, found = leaves(english(info)).keys(), leaves(read("zh", "nodeDefs.json")).keys()
    for said, places in (("lacks", wanted - found), ("has too much", found - wanted)):
        for place in sorted(places):
            print(f"locales/zh {said}: {'.'.join(place)}")
    return int(wanted != found)


def main() -> int:
    host = setup.enter()
    return command.status_of("node_locales", lambda: _run(host))


def _run(host) -> int:
    import comfy_install
    from comfy_server import ComfyServer

    base = layout.OUTPUT / "node_locales" / "base"
    comfy_install.prepare_base(base)
    try:
        with ComfyServer(host, base=base, log=layout.LOGS / "node_locales.log") as server:
            return write(server.object_info())
    finally:
        comfy_install.unlink_packs(base)


if __name__ == "__main__":
    sys.exit(main())
