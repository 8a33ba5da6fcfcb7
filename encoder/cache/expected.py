"""What is kept of a request that is known by its layout and by the digests of its vision blocks alone.

Contract: no weight, no patch and no pixel is looked at, and nothing that is kept counts as used by it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch

from ..pixels import PATCH_WIDTH, Patches
from ..placement import find_blocks
from ..presentation import PixelInputs, Presentation
from ..segments import usable
from ..token_inputs import grid_list
from .content import token_keys
from .prefixes import PrefixStore

KINDS = {"image": "Picture", "video": "Video"}  # modality: name of its parts


def with_digests(presentation: Presentation, digests: Mapping[str, Sequence[bytes]]) -> Presentation:
    """A layout (presentation_layout.py) as `request_key` and `expected_prefix` read a presentation: its patches have
    grids and digests, and no values."""
    return replace(presentation, patches=PixelInputs(**{m: _named(presentation, m, digests) for m in KINDS}))


def _named(presentation: Presentation, modality: str, digests: Mapping[str, Sequence[bytes]]) -> Patches | None:
    grids = [p.grid_thw for p in presentation.parts if p.grid_thw and p.name.startswith(KINDS[modality])]
    if not grids:
        return None
    own, wanted = tuple(digests.get(modality, ())), sum(steps for steps, _, _ in grids)
    if len(own) != wanted:
        raise ValueError(
            f"expected prefix: expected {wanted} digests of {modality} blocks, got {len(own)}. Pass one for each block."
        )
    return Patches(torch.empty(0, PATCH_WIDTH), torch.tensor(grids, dtype=torch.int64), own)


def expected_prefix(
    store: PrefixStore, identity: Hashable, ids: torch.Tensor, presentation: Presentation, merge: int
) -> int:
    """How many of the tokens `ids` [S] a pass would not compute, as ReusingPass decides it. identity: its own."""
    image, video = presentation.image, presentation.video
    blocks = find_blocks(ids, grid_list(image), grid_list(video), merge)
    digests = {m: p.digests or () for m, p in (("image", image), ("video", video)) if p is not None}
    _, end = store.find(identity, token_keys(ids, blocks, digests))
    return usable(end, blocks, len(ids))
