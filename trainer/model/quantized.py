"""Frozen bases in 4 bits: NF4 with double quantization (Dettmers et al., "QLoRA", 2023, arXiv 2305.14314), by
bitsandbytes.

bitsandbytes is imported only for a quantized base: the import takes a second.
"""

import sys
from typing import Any, TypeGuard, cast

import torch

from trainer.model.model import Model

# Weights that have a scale together.
BLOCK = 64


def quantization_config(dtype: torch.dtype, skipped: tuple[str, ...] = ()) -> Any:
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


def is_quantized(module: torch.nn.Module) -> TypeGuard[torch.nn.Linear]:
    """Whether the module is bitsandbytes' linear layer with weights in 4 bits."""
    loaded = sys.modules.get("bitsandbytes")
    return loaded is not None and isinstance(module, loaded.nn.Linear4bit)


def is_adapted(module: torch.nn.Module) -> bool:
    """Whether the module is peft's layer for a quantized base."""
    loaded = sys.modules.get("peft.tuners.lora.bnb")
    return loaded is not None and type(module) is getattr(loaded, "Linear4bit", None)


def dtype_of(base: torch.nn.Linear) -> torch.dtype:
    """The precision in which a linear layer computes, quantized or not."""
    return cast(Any, base).compute_dtype if is_quantized(base) else base.weight.dtype


def dequantize(weight: torch.Tensor) -> torch.Tensor:
    """The weight [outputs, inputs] in the precision that it had before. `weight`: bitsandbytes' Params4bit."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, cast(Any, weight).quant_state)


def keep_differentiable(model: Model) -> None:
    """Keeps bitsandbytes from repacking weights for inference when they are used without gradients, as in an evaluation
    between steps: repacked weights have no backward pass.
    """
    for module in model.modules():
        if is_quantized(module):
            vars(module)["support_avx512bf16_for_cpu"] = False
