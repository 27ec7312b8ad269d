"""Rewrites a checkpoint in FP8 or MXFP4 with whole weights, a piece of a tensor at a time.

Forms are told by the tensors: FP8 beside a scale of the tensor, of each row or of each block (transformers' `fp8`,
compressed-tensors, ModelOpt), and gpt-oss's `_blocks` of two 4-bit numbers a byte beside `_scales`.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trainer.model.tensors import FLOATING, Entry, PlannedTensor, as_it_is, read_checkpoint, replace_checkpoint

FP8 = ("F8_E4M3", "F8_E5M2")
# What a scale is called beside the weight X, or beside the weight Y.weight.
SCALES_OF_WEIGHT = ("{}_scale_inv", "{}_scale")
SCALES_OF_LAYER = ("{}.scale", "{}.weight_scale_inv", "{}.weight_scale")
# Scales of inputs and outputs, which only products in FP8 need.
OF_ACTIVATIONS = ("activation_scale", "input_scale", "output_scale")
OF_CACHES = ("k_scale", "v_scale", "q_scale")
BLOCKS, BLOCK_SCALES = "_blocks", "_scales"
# The numbers of four bits (E2M1).
FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# A byte (E8M0) is the exponent of a power of two, plus this.
EXPONENT_BIAS = 127
CONFIG = "quantization_config"
# What writes the forms above, as `quant_method` calls it.
READABLE = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4")


def cannot_be_read(form: object) -> str:
    """The sentence for a checkpoint in a form that is none of those."""
    return (
        f"Its weights are quantized ({form}); FP8 and gpt-oss's MXFP4 can be read. Take the model that it was made "
        "from."
    )


def is_quantized(folder: Path) -> bool:
    """Whether the checkpoint's configuration says that its weights are quantized."""
    return _quantization(_read(folder)) is not None


def is_mxfp4(folder: Path) -> bool:
    """Whether it is in MXFP4, which the engine's converter takes as it is."""
    return (_quantization(_read(folder)) or {}).get("quant_method") == "mxfp4"


def dequantize(folder: Path) -> None:
    """Replaces the checkpoint's weights by the same numbers in bfloat16, and removes `quantization_config`. Takes the
    disk of both until it ends. Raises RuntimeError with a reason for the user.
    """
    config = _read(folder)
    entries = read_checkpoint(folder)
    planned = planned_tensors(entries, _quantization(config) or {})
    needed, free = sum(tensor.bytes for tensor in planned.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise RuntimeError(
            f"Its weights are quantized, and take {needed / 1e6:.0f} MB when they are whole, as training needs them; "
            f"the disk has {free / 1e6:.0f} MB."
        )
    replace_checkpoint(folder, entries, planned)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part.pop(CONFIG, None)
    config.setdefault("dtype", config.get("torch_dtype", "bfloat16"))
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def planned_tensors(entries: dict[str, Entry], quantization: dict[str, Any]) -> dict[str, PlannedTensor]:
    """What is written of a checkpoint's tensors, by its names. Raises RuntimeError for a form that cannot be read."""
    block = _block_size(quantization)
    scales = {name: scale for name, entry in entries.items() if (scale := _scale_name(name, entry, entries))}
    left_out = set(scales.values()) | _of_activations(entries, scales)
    planned = {}
    for name, entry in entries.items():
        if name in left_out:
            continue
        if name not in scales:
            if entry.dtype not in FLOATING and len(entry.shape) > 1:
                raise RuntimeError(
                    cannot_be_read(f"{quantization.get('quant_method', 'unknown')}: {name} is {entry.dtype}")
                )
            planned[name] = PlannedTensor(entry.dtype, entry.shape, as_it_is(entry))
        elif name.endswith(BLOCKS):
            *experts, rows, groups, size = entry.shape
            # Experts are [inputs, outputs] in memory, and the files' [outputs, inputs].
            shape = (*experts, groups * size * 2, rows)
            planned[name.removesuffix(BLOCKS)] = PlannedTensor("BF16", shape, _of_blocks(entry, entries[scales[name]]))
        else:
            planned[name] = PlannedTensor("BF16", entry.shape, _of_fp8(entry, entries[scales[name]], block))
    return planned


def _scale_name(name: str, entry: Entry, entries: dict[str, Entry]) -> str | None:
    if name.endswith(BLOCKS) and entry.dtype == "U8" and len(entry.shape) == 4:
        candidates = [name.removesuffix(BLOCKS) + BLOCK_SCALES]
    elif entry.dtype in FP8:
        layer = name.removesuffix(".weight")
        candidates = [form.format(name) for form in SCALES_OF_WEIGHT] + [form.format(layer) for form in SCALES_OF_LAYER]
    else:
        return None
    return next((candidate for candidate in candidates if candidate in entries), None)


def _of_activations(entries: dict[str, Entry], scales: dict[str, str]) -> set[str]:
    owners = {owner for name in scales for owner in (name, name.removesuffix(".weight"))}
    return {
        name
        for name, entry in entries.items()
        if any(name.endswith(end) and name.removesuffix(end).rstrip("._") in owners for end in OF_ACTIVATIONS)
        or (scales and name.rpartition(".")[2] in OF_CACHES and math.prod(entry.shape) == 1)
    }


def _of_fp8(entry: Entry, scale: Entry, block: tuple[int, int] | None) -> Callable[[], Iterator[torch.Tensor]]:
    """The numbers of an FP8 weight [..., outputs, inputs] times their scales: one, one an expert, or [..., blocks of
    outputs, blocks of inputs].
    """

    def pieces() -> Iterator[torch.Tensor]:
        factors = _factors(scale.whole())
        for span, part in entry.pieces():
            yield (part.float() * _spread(factors, list(entry.shape), span, block)).bfloat16()

    return pieces


def _factors(stored: torch.Tensor) -> torch.Tensor:
    if stored.dtype == torch.uint8:
        return torch.ldexp(torch.ones(()), stored.int() - EXPONENT_BIAS)
    return stored.float()


def _spread(factors: torch.Tensor, shape: list[int], span: slice, block: tuple[int, int] | None) -> torch.Tensor:
    """The scales of the numbers in `span` of the weight's first dimension, to be multiplied with these."""
    if factors.numel() == 1:
        return factors.reshape(())
    if factors.ndim < len(shape):
        # One factor for each row, or for each expert.
        factors = factors.reshape(*factors.shape, *[1] * (len(shape) - factors.ndim))
    if len(shape) > 2:
        factors = factors[span] if len(factors) == shape[0] else factors
    outputs, inputs = shape[-2], shape[-1]
    heights, widths = factors.shape[-2:]
    height, width = math.ceil(outputs / heights), math.ceil(inputs / widths)
    # The last block may be cut.
    if block and math.ceil(outputs / block[0]) == heights and math.ceil(inputs / block[1]) == widths:
        height, width = block
    rows = torch.arange(outputs) if len(shape) > 2 else torch.arange(span.start, span.stop)
    return factors[..., rows // height, :][..., torch.arange(inputs) // width]


def _of_blocks(entry: Entry, scale: Entry) -> Callable[[], Iterator[torch.Tensor]]:
    """The numbers of `entry` [experts, outputs, groups, bytes], two a byte, the low one first, times the powers of two
    in `scale` [experts, outputs, groups]: [experts, inputs, outputs].
    """

    def pieces() -> Iterator[torch.Tensor]:
        exponents, numbers = scale.whole(), torch.tensor(FOUR_BITS)
        for span, part in entry.pieces():
            codes = torch.stack([part & 0xF, part >> 4], dim=-1).flatten(-2).int()
            values = torch.ldexp(numbers[codes], exponents[span][..., None].int() - EXPONENT_BIAS)
            yield values.flatten(-2).mT.contiguous().bfloat16()

    return pieces


def _block_size(quantization: dict[str, Any]) -> tuple[int, int] | None:
    groups: dict[str, Any] = quantization.get("config_groups") or {}
    sizes = [quantization.get("weight_block_size")]
    sizes += [(group.get("weights") or {}).get("block_structure") for group in groups.values()]
    return next(((int(size[0]), int(size[1])) for size in sizes if isinstance(size, list) and len(size) == 2), None)


def _quantization(config: dict[str, Any]) -> dict[str, Any] | None:
    return config.get(CONFIG) or (config.get("text_config") or {}).get(CONFIG)


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())
