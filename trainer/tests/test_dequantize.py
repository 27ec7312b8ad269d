"""Bases in FP8 and MXFP4 are read: the same numbers as transformers reads, in bfloat16."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.families.checkpoints import QUANTIZED, write
from tests.families.quantized import BLOCK
from trainer.cli.prepare_base import convert
from trainer.model.dequantize import dequantize
from trainer.model.targets import targets_of
from trainer.run.base_check import check_base
from trainer.runtime.gguf_reader import GgufReader
from trainer.tests.test_base_check import CONVERTERS, ENGINE

LAYER = "model.layers.1."


def test_fp8_of_blocks_that_do_not_divide_a_weight(tmp_path):
    write("qwen3_fp8", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    dequantize(tmp_path)
    whole, name = load_file(tmp_path / "model.safetensors"), f"{LAYER}mlp.up_proj.weight"
    scale = stored[f"{name}_scale_inv"]
    assert scale.shape == (3, 2)
    for row, column in ((0, 0), (47, 47), (48, 0), (127, 63)):
        expected = stored[name][row, column].float() * scale[row // BLOCK, column // BLOCK]
        assert whole[name][row, column] == expected.bfloat16()
    assert torch.equal(whole["model.embed_tokens.weight"], stored["model.embed_tokens.weight"])
    assert not [name for name in whole if "scale" in name]
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


def test_fp8_as_transformers_reads_it(tmp_path):
    """Experts that are one tensor, with a scale for each block, each expert, and each row."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(0)
    weight = torch.randn(3, 64, 96).to(torch.float8_e4m3fn)
    for shape in ((3, 2, 3), (3, 1, 1), (3, 64, 1)):
        scale = torch.rand(shape) + 0.5
        save_file({"experts.up": weight, "experts.up_scale_inv": scale}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
        dequantize(tmp_path)
        expected = torch.stack(
            [
                Fp8Dequantize(None)._dequantize_one(one, own, torch.bfloat16)
                for one, own in zip(weight, scale, strict=True)
            ]
        )
        assert torch.equal(load_file(tmp_path / "model.safetensors")["experts.up"], expected)


def test_mxfp4_as_transformers_reads_it(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    write("gpt_oss_mxfp4", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    dequantize(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for name in ("gate_up_proj", "down_proj"):
        weight = f"{LAYER}mlp.experts.{name}"
        expected = convert_moe_packed_tensors(stored[f"{weight}_blocks"], stored[f"{weight}_scales"])
        assert torch.equal(whole[weight], expected)
        assert expected.float().std() > 0.01
    write("gpt_oss", tmp_path / "whole")
    assert whole.keys() == load_file(tmp_path / "whole/model.safetensors").keys()


@pytest.mark.parametrize(
    "name",
    ["gpt_oss_mxfp4", *(pytest.param(name, marks=pytest.mark.full) for name in QUANTIZED if name != "gpt_oss_mxfp4")],
)
def test_the_engine_computes_what_transformers_reads(known_tokens, tmp_path, name):
    """The whole way of adding: converted, dequantized, and compared with a random adapter."""
    write(name, tmp_path / "hf", as_served=name == "ministral3_fp8")
    convert(tmp_path, CONVERTERS)
    targets = targets_of(tmp_path / "hf", CONVERTERS)
    assert targets["linear_modules"]
    assert check_base(tmp_path / "hf", tmp_path / "model.gguf", targets, CONVERTERS, ENGINE) is None
    assert types_of(tmp_path / "model.gguf", "_exps.weight") == ({"MXFP4"} if name == "gpt_oss_mxfp4" else set())


def types_of(gguf_file: Path, end: str) -> set[str]:
    return {tensor.tensor_type.name for tensor in GgufReader(gguf_file).tensors if tensor.name.endswith(end)}


def test_other_quantizations_are_refused_with_a_sentence(tmp_path):
    write("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, f"{LAYER}mlp.up_proj.qweight": torch.ones(8, 8, dtype=torch.int32)}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(
        RuntimeError, match=r"quantized \(gptq: .*qweight is I32\); FP8 and gpt-oss's MXFP4 can be read"
    ):
        dequantize(tmp_path)
    assert load_file(file).keys() > tensors.keys()
