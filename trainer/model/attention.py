"""Attention for documents packed into one sequence. Each document sees itself and the shared prefix. Masks are built
only for windows on the CPU, and for pictures whose vectors attend to each other.
"""

import inspect
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from trainer.data.layout import Layout
from trainer.model import kernels
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward

NAME = "packed"
# Layer types that mix tokens only in attention. State spaces and convolutions would leak one document into the next.
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}


def attend(
    rows: torch.Tensor,
    heads: int,
    key_heads: int,
    layout: Layout,
    scaling: float | None,
    window: int | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Causal attention within each document, but mutual where the layout says so. `rows` [rows, heads + 2 key heads,
    size] holds q, k and v; returns [rows, heads, size].
    """
    if layout.ends is not None and layout.mutual is None and fits_varlen(rows.dtype, rows.shape[-1]) and not dropout:
        return _attend_varlen(rows, heads, key_heads, layout, layout.ends, scaling, window)
    results, start = [], 0
    for documents, length in layout.blocks:
        block = rows[start : start + documents * length].unflatten(0, (documents, length)).transpose(1, 2)
        q, k, v = block.split([heads, key_heads, key_heads], dim=1)
        mask = None
        narrower = window if window is not None and length > window else None
        if narrower is not None or layout.mutual is not None:
            position = torch.arange(length, device=rows.device)
            distance = position[:, None] - position[None, :]
            mask = distance >= 0
            if layout.mutual is not None:
                numbers = layout.mutual[start : start + documents * length].view(documents, 1, length)
                mask = mask | (numbers.mT == numbers) & (numbers > 0)
                mask = mask[:, None]
            if narrower is not None:
                mask = mask & (distance < narrower)
        result = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=heads != key_heads,
        )
        results.append(result.transpose(1, 2).flatten(0, 1))
        start += documents * length
    return results[0] if len(results) == 1 else torch.cat(results)


def fits_varlen(dtype: torch.dtype, head_size: int) -> bool:
    """Whether the variable-length kernel supports this type and head size."""
    return dtype.itemsize == 2 and head_size % 8 == 0 and head_size <= 256


def _attend_varlen(
    rows: torch.Tensor,
    heads: int,
    key_heads: int,
    layout: Layout,
    ends: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    from torch.nn.attention import varlen

    longest = max(length for _, length in layout.blocks)
    q, k, v = rows.split([heads, key_heads, key_heads], dim=1)
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1 if window is None else window - 1, 0)}
    # Releases of torch before 2.12 support fewer key heads without this flag.
    if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
        options["enable_gqa"] = heads != key_heads
    # A tuple only where more is asked for.
    return cast(torch.Tensor, varlen.varlen_attn(q, k, v, ends, ends, longest, longest, **options))


class KernelAttention(torch.autograd.Function):
    """Attention by the trainer's kernels: rows of q, k and v bfloat16 [tokens, heads + 2 key heads, size] to [tokens,
    heads, size].
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, attention: kernels.Attention, layout: Layout) -> torch.Tensor:
        rows = states.flatten(1)
        out, saved = attention.forward(rows, layout)
        ctx.save_for_backward(rows, out, *saved)
        ctx.attention, ctx.layout = attention, layout
        return out.unflatten(1, (attention.heads, attention.size))

    @staticmethod
    def backward(ctx: Any, out_gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rows, out, *saved = ctx.saved_tensors
        gradient = torch.empty_like(rows)
        ctx.attention.backward(out_gradient.flatten(1), rows, out, saved, ctx.layout, gradient)
        return gradient.unflatten(1, (-1, ctx.attention.size)), None, None


class Scatter(torch.autograd.Function):
    """`scatter` with gradients."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        return scatter(states, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return scatter_backward(gradient, ctx.layout), None


class Gather(torch.autograd.Function):
    """`gather` with gradients."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        return gather(rows, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gather_backward(gradient, ctx.layout), None


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls.

    Shapes: query [1, heads, tokens, size], key and value [1, key heads, tokens, size]; returns [1, tokens, heads,
    size]. `layout` comes through the model's keyword arguments. A model that drops it fails here instead of mixing
    documents.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise NotImplementedError(
            "This model's attention has parts (soft cap or sinks) that packed training does not have yet."
        )
    layout = kwargs["layout"]
    states = torch.cat([query, key, value], dim=1)[0].transpose(0, 1)
    if torch.is_autocast_enabled(states.device.type):
        states = states.to(torch.get_autocast_dtype(states.device.type))
    window = kwargs.get("sliding_window")
    if not dropout and kernels.available(states.device, states.dtype):
        scale = states.shape[-1] ** -0.5 if scaling is None else scaling
        attention = kernels.Attention(query.shape[1], key.shape[1], states.shape[-1], scale, window)
        if attention.fits(layout):
            return KernelAttention.apply(states, attention, layout)[None], None
    rows = attend(
        Scatter.apply(states, layout),
        query.shape[1],
        key.shape[1],
        layout,
        scaling,
        window,
        dropout,
    )
    return Gather.apply(rows, layout)[None], None


def packable(config: Any) -> bool:
    """Whether documents of a model with this configuration may share a sequence."""
    return set(getattr(config, "layer_types", None) or ["full_attention"]) <= PACKABLE_LAYERS


# transformers builds no mask for an attention name that it has no mask function for.
AttentionInterface.register(NAME, packed_attention)
