"""Makes torchvision and torchaudio importable beside a torch build that their native libraries do not fit.

Their wheels on the default index are CUDA builds; beside a CPU-only torch the import ends in "operator torchvision::nms
does not exist". Everything used here (ComfyUI, transformers' processors, resampling) is plain Python: the native
libraries are removed and the schemas of the two operators that the import asks for are declared. Never applied where
the normal wheels import. Standard library only; idempotent.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROBE = "import torchaudio, torchvision, torchaudio.functional\nfrom torchvision.transforms.v2 import functional\n"
_MARK = "# Added by set-up: operators that are declared, never called"
_SCHEMAS = f"""

{_MARK} (the native library does not fit this torch).
if not _has_ops():
    import torch as _torch

    _declared = _torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
_NATIVE = tuple(
    f"{stem}.{kind}"
    for stem in ("torchaudio/lib/*", "torchvision/_C*", "torchvision/image*")
    for kind in ("so", "pyd", "dll", "dylib")
)


def imports(python: Path) -> bool:
    """Whether both packages import in that interpreter."""
    return subprocess.run([str(python), "-c", PROBE], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def apply(site: Path) -> None:
    """Removes the native libraries in a package folder and declares the operators, once."""
    for pattern in _NATIVE:
        for library in site.glob(pattern):
            library.unlink()
    for folder in (site / "torchvision.libs", site / "torchaudio.libs"):
        shutil.rmtree(folder, ignore_errors=True)
    extension = site / "torchvision" / "extension.py"
    text = extension.read_text(encoding="utf-8")
    if _MARK not in text:
        extension.write_text(text + _SCHEMAS, encoding="utf-8")
