"""Writes the weights of a checkpoint in the forms in which some families publish theirs: FP8 and MXFP4."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.model.dequantize import EXPONENT_BIAS, FOUR_BITS

Tensors = dict[str, torch.Tensor]
LARGEST_FP8 = 448.0
# Blocks that do not divide a layer's sizes, as those of DeepSeek's 576 rows.
BLOCK = 48
# Numbers with one power of two.
GROUP = 32


def fp8_of_blocks(folder: Path) -> None:
    """As Qwen's, DeepSeek's and GLM's: a scale for each block of a weight."""

    def quantize(name: str, weight: torch.Tensor) -> Tensors:
        blocks = torch.nn.functional.pad(weight, (0, -weight.shape[1] % BLOCK, 0, -weight.shape[0] % BLOCK))
        largest = blocks.abs().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).amax((1, 3))
        scale = largest / LARGEST_FP8
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: len(weight), : weight.shape[1]]
        return {name: (weight / spread).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}

    _rewrite(folder, quantize, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})


def fp8_of_tensors(folder: Path) -> None:
    """As Ministral 3's: a scale for each weight, and one for its inputs."""

    def quantize(name: str, weight: torch.Tensor) -> Tensors:
        scale = weight.abs().max() / LARGEST_FP8
        return {
            name: (weight / scale).to(torch.float8_e4m3fn),
            f"{name}_scale_inv": scale.bfloat16(),
            name.replace(".weight", ".activation_scale"): torch.ones((), dtype=torch.bfloat16),
        }

    _rewrite(folder, quantize, {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"})


def fp8_of_rows(folder: Path) -> None:
    """As compressed-tensors writes it: a scale for each row."""

    def quantize(name: str, weight: torch.Tensor) -> Tensors:
        scale = weight.abs().amax(1, keepdim=True) / LARGEST_FP8
        return {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale.bfloat16()}

    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    fields = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    _rewrite(folder, quantize, fields)


def mxfp4_experts(folder: Path) -> None:
    """As gpt-oss's: the experts in blocks of four bits."""

    def quantize(name: str, weight: torch.Tensor) -> Tensors:
        groups = weight.mT.unflatten(-1, (-1, GROUP))
        exponents = groups.abs().amax(-1).log2().floor() - 2
        scaled = groups / torch.exp2(exponents)[..., None]
        codes = (scaled[..., None] - torch.tensor(FOUR_BITS)).abs().argmin(-1)
        blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        return {f"{name}_blocks": blocks, f"{name}_scales": (exponents + EXPONENT_BIAS).to(torch.uint8)}

    _rewrite(folder, quantize, {"quant_method": "mxfp4", "modules_to_not_convert": []}, dimensions=3)


def _rewrite(
    folder: Path, quantize: Callable[[str, torch.Tensor], Tensors], fields: dict[str, Any], dimensions: int = 2
) -> None:
    """Quantizes the layers' weights of so many dimensions."""
    file, quantized = folder / "model.safetensors", Tensors()
    for name, weight in load_file(file).items():
        is_layers = weight.ndim == dimensions and ".layers." in name and "router" not in name
        quantized |= quantize(name, weight.float()) if is_layers else {name: weight}
    save_file({name: weight.contiguous() for name, weight in quantized.items()}, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": fields}, indent=1))
