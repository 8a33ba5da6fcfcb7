"""MiniMax H3's conditioning encoder: Qwen3-VL-32B up to `hidden_states[50]`, in PyTorch, without any host.

Symbol legend, used in shape comments throughout:
B batch, S tokens, D hidden width (5120), Hq / Hkv query / key-value heads, Dh head width,
N patches, M merged vision tokens (N / 4), T, H, W, C frames, rows, columns, channels of pixels.

Data flow: prompt and references -> presentation (segments) -> ids and tags [S], patches [N, 1536] and grids
-> vision tower (merged [M, D], DeepStack) -> embeddings + M-RoPE -> 50 decoder layers -> hidden [1, S, D].
"""

from .checkpoint import CheckpointReport, inspect_checkpoint
from .conditioning import Conditioning
from .config import EncoderConfig
from .loading import build_encoder, load_encoder
from .model import Encoder
from .presentation import AudioReference, ImageReference, VideoReference
from .tap import HIDDEN_SIZE, SELECTED_LAYER

__all__ = [
    "HIDDEN_SIZE",
    "SELECTED_LAYER",
    "AudioReference",
    "CheckpointReport",
    "Conditioning",
    "Encoder",
    "EncoderConfig",
    "ImageReference",
    "VideoReference",
    "build_encoder",
    "inspect_checkpoint",
    "load_encoder",
]
