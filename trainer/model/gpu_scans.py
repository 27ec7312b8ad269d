"""Short convolutions, gated delta rules and Mamba2 of packed documents on an NVIDIA GPU, by the kernels of
flash-linear-attention (package `fla-core`, trainer/requirements-cuda.txt).

Tensors are those of a pack's tokens; the rows in which documents are alone are made here (`scatter`).
"""

import importlib.util

import torch

from trainer.data.layout import Layout, supports_varlen
from trainer.model.attention import Gather, Scatter


def available(device: torch.device) -> bool:
    """Whether these functions compute on this device."""
    return supports_varlen(device) and importlib.util.find_spec("fla") is not None


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool, layout: Layout
) -> torch.Tensor:
    """Causal convolutions of each channel of x [tokens, channels] with its weights [channels, width], plus bias
    [channels], through silu or not.
    """
    from fla.modules.causal_conv1d import causal_conv1d  # pyright: ignore[reportMissingImports]

    rows, activation = Scatter.apply(x.contiguous(), layout)[None], "silu" if silu else None
    out, _ = causal_conv1d(rows, weight, bias, activation=activation, cu_seqlens=layout.long_ends)
    return Gather.apply(out[0], layout)


def delta_rule(parts: list[torch.Tensor], scale: float, normalized: bool, layout: Layout) -> torch.Tensor:
    """The gated delta rule of q and k [tokens, key heads, key size], v [tokens, heads, value size], the logarithms of
    decays and shares [tokens, heads]: results like v.
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore[reportMissingImports]

    rows = (Scatter.apply(part.contiguous(), layout)[None] for part in parts)
    out, _ = chunk_gated_delta_rule(*rows, scale=scale, use_qk_l2norm_in_kernel=normalized, cu_seqlens=layout.long_ends)
    return Gather.apply(out[0], layout)


def mamba2(
    c: torch.Tensor,
    b: torch.Tensor,
    x: torch.Tensor,
    decay: torch.Tensor,
    share: torch.Tensor,
    skip: torch.Tensor | None,
    layout: Layout,
) -> torch.Tensor:
    """Mamba2 as a gated linear attention with one decay a head (Dao and Gu, 2024, arXiv 2405.21060): C and B [tokens,
    groups, size], x [tokens, heads, head size], the logarithms of decays and shares float32 [tokens, heads], skip
    float32 [heads] or None. Results like x.
    """
    from fla.ops.simple_gla import chunk_simple_gla  # pyright: ignore[reportMissingImports]

    repeats = x.shape[1] // c.shape[1]
    taken = (x.float() * share[..., None]).to(x.dtype)
    parts = [c.repeat_interleave(repeats, 1), b.repeat_interleave(repeats, 1), taken, decay]
    rows = (Scatter.apply(part.contiguous(), layout)[None] for part in parts)
    out, _ = chunk_simple_gla(*rows, scale=1.0, cu_seqlens=layout.long_ends)
    result = Gather.apply(out[0], layout)
    return result if skip is None else (result + x.float() * skip[:, None]).to(x.dtype)
