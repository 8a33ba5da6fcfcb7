"""One request to the encoder and to transformers' model over the same weights.

Contract: `pair(dtype)` -> (encoder, official model) on the goldens' weights; `request()` -> arguments of `encode_ids`
with text, two images and a video; `differences()` -> dtype -> largest difference, 0.0 where all bits agree, once with
the released convolution in the encoder and once as delivered.
"""

from __future__ import annotations

import torch
from h3te.encoder import Encoder, build_encoder
from h3te.nodes.official.model import OfficialModel, official_model
from h3te_tests.patch_scenes import DTYPES
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config
from h3te_tests.version_cases import weights
from h3te_tests.version_steps import difference, use_released_convolution

START, END, IMAGE, VIDEO = 151652, 151653, 151655, 151656
IMAGES, VIDEOS = ((1, 16, 28), (1, 6, 10)), ((2, 4, 6),)


def pair(dtype: torch.dtype) -> tuple[Encoder, OfficialModel]:
    encoder = build_encoder(tiny_config(), dtype=dtype, tap_layer=TAP_LAYER)
    encoder.load_weights(weights().items())
    return encoder, official_model(encoder)


def request() -> dict[str, torch.Tensor]:
    ids = [9707, 11, 1879]
    for pad, grids in ((IMAGE, IMAGES), (VIDEO, VIDEOS)):
        for t, h, w in grids:
            ids += [*[START, *[pad] * (h * w // 4), END, 785] * t]
    made = torch.Generator().manual_seed(2)
    rows = [sum(t * h * w for t, h, w in grids) for grids in (IMAGES, VIDEOS)]
    image, video = (torch.randn(count, 1536, generator=made) for count in rows)
    return {
        "input_ids": torch.tensor([*ids, 5562, 13]),
        "pixel_values": image,
        "image_grid_thw": torch.tensor(IMAGES),
        "pixel_values_videos": video,
        "video_grid_thw": torch.tensor(VIDEOS),
    }


def differences() -> dict[str, dict[str, float]]:
    found = {}
    for name, dtype in DTYPES.items():
        encoder, official = pair(dtype)
        theirs = official.encode_ids(**request())
        delivered = difference(encoder.encode_ids(**request()), theirs)
        use_released_convolution(encoder)
        found[name] = {"delivered": delivered, "convolution": difference(encoder.encode_ids(**request()), theirs)}
        official.close()
    return found
