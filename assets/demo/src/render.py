"""Render the demo pictures anew: python assets/demo/src/render.py [scene ...]

Needs POV-Ray 3.7 (Debian: `apt-get install povray povray-includes`), Pillow and PyAV. About an hour on two cores
for everything; name scenes (harbour_dawn, toy_train, ...) to make some of them only.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import av
from PIL import Image

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent
LARGEST = 195_000  # bytes of a picture: the repository carries all of them
PICTURES = {
    "harbour_dawn": ("harbour.pov", 1344, 768, "Declare=Daylight=0"),
    "harbour_day": ("harbour.pov", 1344, 768, "Declare=Daylight=1"),
    "rubber_duck": ("duck.pov", 1024, 768, ""),
    "lighthouse": ("lighthouse.pov", 768, 1152, ""),
    "breakfast": ("breakfast.pov", 1152, 768, ""),
}
VIDEO, FRAMES, FPS = "toy_train", 49, 24


def povray(scene: str, output: Path, width: int, height: int, *options: str) -> None:
    """Render `scene` to PNG; POV-Ray's own messages are shown only when it fails."""
    command = ["povray", f"+I{scene}", f"+O{output}", f"+W{width}", f"+H{height}", "+A0.1", "+AM2", "+R3", "-D", "+FN"]
    done = subprocess.run([*command, *filter(None, options)], cwd=SOURCE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"render: expected POV-Ray to render {scene}, got status {done.returncode}:\n{done.stderr[-2000:]}")


def picture(name: str, folder: Path) -> None:
    scene, width, height, option = PICTURES[name]
    povray(scene, folder / f"{name}.png", width, height, option)
    image = Image.open(folder / f"{name}.png").convert("RGB")
    for quality in range(92, 59, -2):
        encoded = io.BytesIO()
        image.save(encoded, "JPEG", quality=quality, optimize=True, progressive=True)
        if encoded.tell() <= LARGEST:
            break
    replace(TARGET / f"{name}.jpg", encoded.getvalue())


def video(folder: Path) -> None:
    povray("train.pov", folder / "frame.png", 384, 224, f"+KFF{FRAMES}", "+KI0", "+KF1")
    encoded = io.BytesIO()
    with av.open(encoded, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS), options={"crf": "19", "preset": "slow"})
        stream.width, stream.height, stream.pix_fmt = 384, 224, "yuv420p"
        for file in sorted(folder.glob("frame*.png")):
            container.mux(stream.encode(av.VideoFrame.from_image(Image.open(file).convert("RGB"))))
        container.mux(stream.encode())
    replace(TARGET / f"{VIDEO}.mp4", encoded.getvalue())


def replace(file: Path, content: bytes) -> None:
    partial = file.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(file)
    print(f"{file.name}: {len(content)} bytes")  # noqa: T201


def main(names: list[str]) -> None:
    known = [*PICTURES, VIDEO]
    if unknown := set(names) - set(known):
        sys.exit(f"render: expected scenes of {', '.join(known)}, got {', '.join(sorted(unknown))}. Name one of those.")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or known:
            video(Path(folder)) if name == VIDEO else picture(name, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
