"""Tokenizer files of the demo checkpoint: vocabulary and merges are copied, the added tokens are written.

vocab.json and merges.txt come from the `comfy/text_encoders/qwen25_tokenizer` folder of a ComfyUI; the project ships
neither. ComfyUI's tokenizer_config.json does not know the seven H3 tokens, so this module writes one laid out as the
released file: 26 tokens with their ids, and a list of special tokens whose seven new names take the ids that follow.
transformers loads the result with AutoTokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

from pack import h3te_module

COPIED = ("vocab.json", "merges.txt")
CONFIG = "tokenizer_config.json"


def tokenizer_config() -> bytes:
    """Return tokenizer_config.json as UTF-8 JSON."""
    tokens = h3te_module("encoder.tokens")
    shared = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    names = [(name, True) for name in tokens.QWEN_SPECIAL] + [(name, False) for name in tokens.QWEN_PLAIN]
    added = {
        str(tokens.ENDOFTEXT + index): {"content": name, **shared, "special": special}
        for index, (name, special) in enumerate(names)
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [*tokens.QWEN_SPECIAL[1:], *tokens.H3_TOKENS],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    return json.dumps(config, indent=2).encode()


def tokenizer_files(source: Path) -> dict[str, bytes]:
    """Return {file name: content} of the demo's tokenizer; `source` holds vocab.json and merges.txt."""
    missing = [name for name in COPIED if not (source / name).is_file()]
    if missing:
        raise ValueError(
            f"demo checkpoint: expected {' and '.join(COPIED)} in the tokenizer folder, got no {missing[0]} in "
            f"{source}. Name the comfy/text_encoders/qwen25_tokenizer folder of a ComfyUI."
        )
    return {name: (source / name).read_bytes() for name in COPIED} | {CONFIG: tokenizer_config()}
