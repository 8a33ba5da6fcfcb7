"""A config.json in the folder of a single file: used where it is this encoder's, passed over where it is another
model's, noted where it changes what is computed. Headers of real size over holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from h3te.encoder import EncoderConfig, inspect_checkpoint
from h3te_tests.checkpoint_files import released_config, stored, write_sparse, write_sparse_folder

CUT = released_config(layers=50)
SINGLE = "qwen3vl_32b_minimax_h3_bf16.safetensors"


def single(folder: Path) -> Path:
    return write_sparse(folder / SINGLE, stored(released_config()))


MISTRAL = {"model_type": "mistral3", "vision_config": {"hidden_size": 1024, "hidden_act": "silu"}, "text_config": {
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768, "num_attention_heads": 32, "head_dim": 128,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "rope_theta": 1e9, "vocab_size": 131072, "rms_norm_eps": 1e-5,
}}  # fmt: skip
OTHER_CONFIGS = {
    "another model of this width": MISTRAL, "the width alone": {"text_config": {"hidden_size": 5120}},
    "flat": {"model_type": "qwen2_5_vl", "hidden_size": 5120}, "a list": [1], "text": "{",
    "other vision": released_config(hidden_size=1024, num_heads=16), "fewer layers": released_config(layers=36),
    "no vision": {**released_config(), "vision_config": None}, "other heads": released_config(heads=32),
    "another demo": {**released_config(mlp=512), "h3te_demo": True}, "a folder": None,
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_CONFIGS)
def test_config_of_another_model_beside_a_good_file_is_passed_over(tmp_path, caplog, what):
    path, config = single(tmp_path), OTHER_CONFIGS[what]
    if config is None:
        (tmp_path / "config.json").mkdir()
    else:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    report = inspect_checkpoint(path)
    assert (report.problems, report.notes, report.is_demo) == ((), (), False)
    assert report.config == EncoderConfig.from_dict(released_config())
    assert ("is another model's and is not used" in caplog.text) == (config is not None)


def test_config_of_this_model_beside_a_single_file_is_used(tmp_path):
    path = write_sparse(tmp_path / SINGLE, stored(CUT))  # cut to 50 layers
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    report = inspect_checkpoint(path)
    assert (report.problems, report.notes) == ((), ())
    assert report.config.text.num_hidden_layers == 64


OTHER_NUMBERS = {
    "rope_theta": (1e6, "rope_theta 1000000.0 (released: 5000000.0)"),
    "rms_norm_eps": (1e-5, "rms_norm_eps 1e-05 (released: 1e-06)"),
    "rope_scaling": ({"mrope_section": [16, 24, 24]}, "mrope_section [16, 24, 24] (released: [24, 20, 20])"),
}


@pytest.mark.parametrize("where", ["beside", "folder", "header"])
@pytest.mark.parametrize("key", OTHER_NUMBERS)
def test_numbers_that_only_a_config_tells_are_noted_where_they_are_not_the_released_ones(tmp_path, key, where):
    config, (value, said) = released_config(layers=50), OTHER_NUMBERS[key]
    config["text_config"][key] = value
    if where == "folder":
        path = write_sparse_folder(tmp_path / "text_encoder", config)
    else:
        metadata = {"config": json.dumps(config)} if where == "header" else None
        path = write_sparse(tmp_path / SINGLE, stored(CUT), metadata)
    if where == "beside":
        (tmp_path / "config.json").write_text(json.dumps(config))
    report = inspect_checkpoint(path)
    assert report.problems == ()
    (note,) = report.notes
    assert said in note
    assert "If that config.json is another model's, move it away." in note


def test_deepstack_after_other_blocks_is_noted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(released_config(deepstack_visual_indexes=[5, 11, 17])))
    (note,) = inspect_checkpoint(single(tmp_path)).notes
    assert "deepstack_visual_indexes [5, 11, 17] (released: [8, 16, 24])" in note
