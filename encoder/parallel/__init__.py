"""One encoder over several ranks of torch.distributed: each holds a part of every large weight of the decoder."""

from .group import TensorParallel

__all__ = ["TensorParallel"]
