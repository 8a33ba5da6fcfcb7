"""What is in a checkpoint, told from headers alone, and reading the needed part of it."""

from .report import CheckpointReport, inspect_checkpoint

__all__ = ["CheckpointReport", "inspect_checkpoint"]
