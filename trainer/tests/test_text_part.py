"""Of a checkpoint whose other parts cannot be loaded, its language model is kept as it is."""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer.model.text_part import keep_text_if_needed
from trainer.tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/families"))
import checkpoints


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(input_ids=torch.arange(100, 120)[None], use_cache=False).logits


def test_a_tower_of_another_package_is_left_out(tmp_path):
    checkpoints.write("gemma3n", tmp_path)
    weights, expected = load_file(tmp_path / "model.safetensors"), logits(tmp_path)
    assert keep_text_if_needed(tmp_path) is None
    checkpoints.beside_other_parts(tmp_path)
    assert keep_text_if_needed(tmp_path) == "transformers needs timm to load the part that does"
    kept = load_file(tmp_path / "model.safetensors")
    assert kept.keys() == weights.keys()
    assert all(torch.equal(kept[name], weights[name]) for name in weights)
    torch.testing.assert_close(logits(tmp_path), expected, atol=0, rtol=0)


def test_a_checkpoint_that_can_be_loaded_is_left_as_it_is(tmp_path):
    checkpoints.write("qwen3_vl", tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    assert keep_text_if_needed(tmp_path) is None
    assert (tmp_path / "config.json").read_bytes() == before
