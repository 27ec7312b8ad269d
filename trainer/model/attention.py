"""Attention for documents packed into one sequence. Each document sees itself and the shared prefix. Masks are built
only for windows on the CPU, for chunks, and for pictures whose vectors attend to each other.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from trainer.data.layout import Layout
from trainer.model import kernels
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward

NAME = "packed"


@dataclass(frozen=True)
class Rule:
    """How a layer attends within a document, beside causal order.

    `window`: a token sees itself and the window - 1 before it. `chunk`: a token sees those of its own chunk of so many
    positions, counted from the document's start. `softcap`: scores are capped smoothly at this value. `sinks` [heads]:
    a score of each head that takes its share of the weights, and has no value.
    """

    scaling: float | None = None
    window: int | None = None
    chunk: int | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a softmax of scaled products, over a window or everything before."""
        return not self.chunk and not self.dropout and self.softcap is None and self.sinks is None


# Where `recorded_rules` collects them.
_recorded: list[Rule] | None = None


@contextmanager
def recorded_rules() -> Iterator[list[Rule]]:
    """The rule of each attention that `packed_attention` computes meanwhile."""
    global _recorded
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def attend(rows: torch.Tensor, heads: int, key_heads: int, layout: Layout, rule: Rule) -> torch.Tensor:
    """Causal attention within each document, but mutual where the layout says so. `rows` [rows, heads + 2 key heads,
    size] holds q, k and v; returns [rows, heads, size].
    """
    if layout.ends is not None and layout.mutual is None and fits_varlen(rows.dtype, rows.shape[-1]) and rule.is_plain:
        return _attend_varlen(rows, heads, key_heads, layout, layout.ends, rule.scaling, rule.window)
    q, k, v = rows.split([heads, key_heads, key_heads], dim=1)
    return attend_apart(q, k, v, layout, rule)


def attend_apart(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, rule: Rule) -> torch.Tensor:
    """`attend` for q [rows, heads, size], k [rows, key heads, size] and v [rows, key heads, value size]: returns
    [rows, heads, value size].
    """
    results, start = [], 0
    for documents, length in layout.blocks:
        end = start + documents * length
        block = [part[start:end].unflatten(0, (documents, length)).transpose(1, 2) for part in (q, k, v)]
        numbers = None if layout.mutual is None else layout.mutual[start:end].view(documents, 1, length)
        result = _attend_block(*block, _visible(length, rule, numbers, q.device), rule)
        results.append(result.transpose(1, 2).flatten(0, 1))
        start = end
    return results[0] if len(results) == 1 else torch.cat(results)


def _visible(length: int, rule: Rule, numbers: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """Which tokens of a document each of its tokens sees: bool [..., length, length]; None: all before it.
    `numbers` [documents, 1, length]: tokens with the same one, other than 0, see each other.
    """
    window = rule.window if rule.window is not None and length > rule.window else None
    chunk = rule.chunk if rule.chunk is not None and length > rule.chunk else None
    if window is None and chunk is None and numbers is None:
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    visible = distance >= 0
    if numbers is not None:
        visible = (visible | (numbers.mT == numbers) & (numbers > 0))[:, None]
    if window is not None:
        visible = visible & (distance < window)
    if chunk is not None:
        visible = visible & (position[:, None] // chunk == position[None, :] // chunk)
    return visible


def _attend_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None, rule: Rule
) -> torch.Tensor:
    """Attention of documents of one length: q [documents, heads, length, size]."""
    heads, length = q.shape[1:3]
    if rule.softcap is None and rule.sinks is None:
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible,
            dropout_p=rule.dropout,
            is_causal=visible is None,
            scale=rule.scaling,
            enable_gqa=heads != k.shape[1],
        )
    if visible is None:
        visible = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    groups = heads // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1) if groups > 1 else part for part in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling)
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.float().masked_fill(~visible, float("-inf"))
    if rule.sinks is not None:
        sinks = rule.sinks.float().view(1, -1, 1, 1).expand(len(q), -1, length, 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.dropout(weights, rule.dropout, rule.dropout > 0).to(v.dtype) @ v


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

    Shapes: query [1, heads, tokens, size], key [1, key heads, tokens, size], value [1, key heads, tokens, value size];
    returns [1, tokens, heads, value size]. `layout` comes through the model's keyword arguments. A model that drops it
    fails here instead of mixing documents.
    """
    layout, heads, key_heads = kwargs["layout"], query.shape[1], key.shape[1]
    window, chunk = _reach(module, kwargs.get("sliding_window"))
    rule = Rule(scaling, window, chunk, dropout, kwargs.get("softcap"), kwargs.get("s_aux"))
    if _recorded is not None:
        _recorded.append(rule)
    parts = [part[0].transpose(0, 1) for part in (query, key, value)]
    if torch.is_autocast_enabled(query.device.type):
        parts = [part.to(torch.get_autocast_dtype(query.device.type)) for part in parts]
    if value.shape[-1] != query.shape[-1]:
        q, k, v = (Scatter.apply(part, layout) for part in parts)
        rows = attend_apart(q, k, v, layout, rule)
        return Gather.apply(rows, layout)[None], None
    states = torch.cat(parts, dim=1)
    if rule.is_plain and kernels.available(states.device, states.dtype):
        scale = states.shape[-1] ** -0.5 if scaling is None else scaling
        attention = kernels.Attention(heads, key_heads, states.shape[-1], scale, window)
        if attention.fits(layout):
            return KernelAttention.apply(states, attention, layout)[None], None
    rows = attend(Scatter.apply(states, layout), heads, key_heads, layout, rule)
    return Gather.apply(rows, layout)[None], None


def _reach(module: torch.nn.Module, window: int | None) -> tuple[int | None, int | None]:
    """The window and the chunk of a layer's attention: as it is called with, else as its type in the configuration."""
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    kind = types[index] if types and index is not None and index < len(types) else None
    if window is None and kind == "sliding_attention":
        window = getattr(module, "sliding_window", None) or getattr(config, "sliding_window", None)
    return window, getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None


# transformers builds no mask for an attention name that it has no mask function for.
AttentionInterface.register(NAME, packed_attention)
