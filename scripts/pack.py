"""Imports this clone as the package `h3te`, whatever its folder is called: `from pack import h3te_module`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

import layout

NAME = "h3te"


def h3te_module(name: str) -> ModuleType:
    """A module of the pack, such as `encoder` or `encoder.geometry`."""
    if NAME not in sys.modules:
        folder = layout.ROOT
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"{NAME}.{name}")
