"""Nodes for the demo and the tests: one writes a CONDITIONING to a safetensors file in ComfyUI's output folder.

Not part of the pack. The file holds `hidden` and `tags`; the node's text names keys, dtype and device of what arrived.
"""

import json
from pathlib import Path

import folder_paths
from safetensors.torch import save_file

from .text_list import TextList


class ConditioningProbe:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING",), "name": ("STRING", {"default": "conditioning"})}}

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "write"
    CATEGORY = "testing"

    def write(self, conditioning, name):
        hidden, extras = conditioning[0]
        path = Path(folder_paths.get_output_directory(), f"{Path(name).name}.safetensors")
        tensors = {"hidden": hidden.cpu().contiguous(), "tags": extras["minimax_token_tags"].cpu().contiguous()}
        partial = path.with_suffix(".part")
        save_file(tensors, partial)
        partial.replace(path)
        facts = {"keys": sorted(extras), "dtype": str(hidden.dtype), "device": str(hidden.device)}
        return {"ui": {"text": [json.dumps(facts)]}}


NODE_CLASS_MAPPINGS = {"H3TEConditioningProbe": ConditioningProbe, "H3TETextList": TextList}
