"""One process of the version matrix: `python version_probe.py TOKENIZER_FOLDER [--without-transformers]` prints JSON.

Contract: with whatever transformers this interpreter finds, for every case of `version_cases`: our hashes, and how ids,
pixels, positions and hidden states of the official path differ from ours. `measure` is the part with transformers.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib import metadata
from pathlib import Path

BLOCKED = ("transformers", "torchvision", "torchaudio", "comfy")


class Blocker:
    """Refuses the modules that our encoder must not need."""

    def find_spec(self, name: str, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"blocked: {name}")


def ours(tokenizer: Path) -> dict:
    """Case -> dtype -> hashes of our output, by the encoder as it is delivered."""
    from h3te_tests.version_cases import CASES, DTYPES, our_encoder, our_hashes

    encoders = {name: our_encoder(dtype, tokenizer) for name, dtype in DTYPES.items()}
    return {case: {name: our_hashes(encoder, case) for name, encoder in encoders.items()} for case in CASES}


def report(tokenizer: Path) -> dict:
    """Everything that the matrix wants to know of this process."""
    if any(name in sys.modules for name in BLOCKED):
        raise RuntimeError(
            "version_probe: expected a fresh interpreter, got one with transformers imported. Run it so."
        )
    found = {"ours": ours(tokenizer)}
    if any(isinstance(finder, Blocker) for finder in sys.meta_path):
        return found
    from h3te_tests.version_measure import measure

    versions = {name: metadata.version(name) for name in ("transformers", "tokenizers", "huggingface_hub", "torch")}
    return {**found, "versions": versions, **measure(tokenizer)}


def main() -> None:
    """The command line; the last line printed is the JSON."""
    warnings.simplefilter("ignore", FutureWarning)
    if "--without-transformers" in sys.argv:
        sys.meta_path.insert(0, Blocker())
    import conftest  # noqa: F401 (makes h3te and h3te_tests importable)

    print(json.dumps(report(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
