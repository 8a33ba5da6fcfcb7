"""Lists the Makefile's targets and what each does."""

from __future__ import annotations

import re

from layout import ROOT


def targets(makefile: str) -> dict[str, str]:
    """Target -> its description, in the order of the file."""
    return dict(re.findall(r"^([a-z][a-z-]*):.*?## (.+)$", makefile, re.MULTILINE))


if __name__ == "__main__":
    for target, description in targets((ROOT / "Makefile").read_text(encoding="utf-8")).items():
        print(f"  make {target:<10} {description}")
