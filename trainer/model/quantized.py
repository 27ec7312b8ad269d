"""Frozen bases in 4 bits: NF4 with double quantization (Dettmers et al., "QLoRA", 2023, arXiv 2305.14314), by
bitsandbytes.

bitsandbytes is imported only for a quantized base: the import takes a second.
"""

import sys

import torch


def quantization_config(dtype: torch.dtype, skipped: tuple[str, ...] = ()):
    """How transformers loads a base for QLoRA; products are computed in `dtype`. Modules named `skipped` stay as they
    are.
    """
    from transformers import BitsAndBytesConfig

    # transformers matches these from the start of a module's whole name.
    named = [rf"(.*\.)?{name}" for name in skipped]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        # The head is never quantized; a list replaces that default.
        llm_int8_skip_modules=[*named, "lm_head"] if skipped else None,
    )


def is_quantized(module: torch.nn.Module) -> bool:
    loaded = sys.modules.get("bitsandbytes")
    return loaded is not None and isinstance(module, loaded.nn.Linear4bit)


def is_adapted(module: torch.nn.Module) -> bool:
    """Whether the module is peft's layer for a quantized base."""
    loaded = sys.modules.get("peft.tuners.lora.bnb")
    return loaded is not None and type(module) is getattr(loaded, "Linear4bit", None)


def dtype_of(base: torch.nn.Module) -> torch.dtype:
    return base.compute_dtype if is_quantized(base) else base.weight.dtype


def dequantize(weight: torch.Tensor) -> torch.Tensor:
    """The weight [outputs, inputs] in the precision that it had before."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state)


def keep_differentiable(model: torch.nn.Module) -> None:
    """Keeps bitsandbytes from repacking weights for inference when they are used without gradients, as in an evaluation
    between steps: repacked weights have no backward pass.
    """
    for module in model.modules():
        if is_quantized(module):
            module.support_avx512bf16_for_cpu = False
