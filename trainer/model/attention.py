"""Attention for documents packed into one sequence. Each document sees itself and the shared prefix; no mask is
built.
"""

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"
# Layer types that mix tokens only in attention. State spaces and convolutions would leak one document into the next.
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
# Documents share one attention call if the shorter has at least this fraction of the longer's length, or if both are
# short: a call costs more than its padding.
SIMILAR, SHORT = 0.7, 128
CPU = torch.device("cpu")


@cache
def supports_varlen(device: torch.device) -> bool:
    """Whether the device has variable-length attention: GPUs since Ampere, with FlashAttention (Dao, 2023, arXiv
    2307.08691).
    """
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True)
class Layout:
    """How a pack's tokens are laid out in padded rows for attention: documents of similar length together, each with
    the shared prefix.

    A pack is `shared` prefix tokens, then each document's own tokens. Padding goes at the end of a document, where
    causal order hides it from every token before it. Indices are int64.

    `scatter_index` [rows]: the token of each row (padding repeats the document's last token).
    `own_rows` [tokens - shared]: the row of each own token.
    `prefix_rows` [documents x shared]: the rows of the shared prefix in each document.
    `position` [tokens]: the row from which a token's result is read.
    `result_tokens` [rows]: the token whose result is read from the row, or `tokens` if none is.
    `blocks`: (documents, padded length) of each attention call.
    `ends` int32 [documents + 1]: cumulative document lengths from 0, only with variable-length attention, which needs
    no padding. If nothing is shared either, rows are tokens and there are no indices.
    """

    shared: int
    scatter_index: torch.Tensor | None
    own_rows: torch.Tensor | None
    prefix_rows: torch.Tensor | None
    position: torch.Tensor | None
    result_tokens: torch.Tensor | None
    blocks: list[tuple[int, int]]
    ends: torch.Tensor | None = None


def layout_of(shared: int, lengths: list[int], device: torch.device = CPU) -> Layout:
    """The layout of a prefix of `shared` tokens followed by documents of `lengths` tokens."""
    varlen_supported = supports_varlen(device)
    if varlen_supported and not shared:
        return Layout(0, None, None, None, None, None, [(1, length) for length in lengths], _ends(lengths, device))
    tokens = shared + sum(lengths)
    starts = [shared + sum(lengths[:index]) for index in range(len(lengths))]
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    blocks: list[tuple[int, int]] = []
    scatter_index, prefix_rows = [], []
    own_rows, result_tokens = torch.empty(tokens - shared, dtype=torch.int64), []
    prefix, row = torch.arange(shared), 0
    for index in order:
        length = shared + lengths[index]
        if blocks and not varlen_supported and (length >= SIMILAR * blocks[-1][1] or blocks[-1][1] <= SHORT):
            blocks[-1] = (blocks[-1][0] + 1, blocks[-1][1])
        else:
            blocks.append((1, length))
        padded = blocks[-1][1]
        own_tokens = torch.arange(starts[index], starts[index] + lengths[index])
        padding = padded - length
        scatter_index.append(torch.cat([prefix, own_tokens, own_tokens[-1:].expand(padding)]))
        own_rows[own_tokens - shared] = torch.arange(row + shared, row + length)
        # The prefix has the same results in every document; they are read from the first.
        first = prefix if not prefix_rows else torch.full_like(prefix, tokens)
        result_tokens.append(torch.cat([first, own_tokens, own_tokens.new_full((padding,), tokens)]))
        prefix_rows.append(row + prefix)
        row += padded
    position = torch.cat([prefix_rows[0], own_rows])
    indices = to_device(
        device, torch.cat(scatter_index), own_rows, torch.cat(prefix_rows), position, torch.cat(result_tokens)
    )
    return Layout(
        shared, *indices, blocks, _ends([length for _, length in blocks], device) if varlen_supported else None
    )


def _ends(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def to_device(device: torch.device, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Moves int64 tensors [length] to the device in one copy: each copy waits for all work queued on the device."""
    if device.type == "cpu":
        return indices
    return torch.cat(indices).to(device).split([len(each) for each in indices])


def scatter(states: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Tokens [tokens, ...] to padded rows [rows, ...]."""
    return states if layout.scatter_index is None else states.index_select(0, layout.scatter_index)


def scatter_backward(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The backward pass of `scatter`: gradients of rows [rows, ...] to gradients of tokens [tokens, ...]. The shared
    prefix sums those of all documents.
    """
    if layout.own_rows is None:
        return gradient
    out = gradient.new_empty(layout.shared + len(layout.own_rows), *gradient.shape[1:])
    out[layout.shared :] = gradient.index_select(0, layout.own_rows)
    if layout.shared:
        prefix_rows = gradient.index_select(0, layout.prefix_rows)
        torch.sum(prefix_rows.view(-1, layout.shared, *gradient.shape[1:]), dim=0, out=out[: layout.shared])
    return out


def gather(rows: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Attention results in rows [rows, ...] to results of tokens [tokens, ...]."""
    return rows if layout.position is None else rows.index_select(0, layout.position)


def gather_backward(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout.result_tokens is None:
        return gradient
    zeros = gradient.new_zeros(1, *gradient.shape[1:])
    return torch.cat([gradient, zeros]).index_select(0, layout.result_tokens)


def attend(
    rows: torch.Tensor,
    heads: int,
    key_heads: int,
    layout: Layout,
    scaling: float | None,
    window: int | None,
    dropout: float = 0.0,
):
    """Causal attention within each document. `rows` [rows, heads + 2 key heads, size] holds q, k and v; returns [rows,
    heads, size].
    """
    if layout.ends is not None and fits_varlen(rows.dtype, rows.shape[-1]) and not dropout:
        return _attend_varlen(rows, heads, key_heads, layout, scaling, window)
    results, start = [], 0
    for documents, length in layout.blocks:
        block = rows[start : start + documents * length].unflatten(0, (documents, length)).transpose(1, 2)
        q, k, v = block.split([heads, key_heads, key_heads], dim=1)
        mask = None
        if window is not None and length > window:
            position = torch.arange(length, device=rows.device)
            distance = position[:, None] - position[None, :]
            mask = (distance >= 0) & (distance < window)
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
    rows: torch.Tensor, heads: int, key_heads: int, layout: Layout, scaling: float | None, window: int | None
):
    from torch.nn.attention import varlen

    longest = max(length for _, length in layout.blocks)
    q, k, v = rows.split([heads, key_heads, key_heads], dim=1)
    # Releases of torch before 2.12 support fewer key heads without this flag.
    gqa = {"enable_gqa": heads != key_heads} if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters else {}
    back = -1 if window is None else window - 1
    return varlen.varlen_attn(
        q, k, v, layout.ends, layout.ends, longest, longest, scale=scaling, window_size=(back, 0), **gqa
    )


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, layout):
        ctx.layout = layout
        return scatter(states, layout)

    @staticmethod
    def backward(ctx, gradient):
        return scatter_backward(gradient, ctx.layout), None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, layout):
        ctx.layout = layout
        return gather(rows, layout)

    @staticmethod
    def backward(ctx, gradient):
        return gather_backward(gradient, ctx.layout), None


def packed_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
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
    rows = attend(
        Scatter.apply(states, layout),
        query.shape[1],
        key.shape[1],
        layout,
        scaling,
        kwargs.get("sliding_window"),
        dropout,
    )
    return Gather.apply(rows, layout)[None], None


def packable(config) -> bool:
    """Whether documents of a model with this configuration may share a sequence."""
    return set(getattr(config, "layer_types", None) or ["full_attention"]) <= PACKABLE_LAYERS


# transformers builds no mask for an attention name that it has no mask function for.
AttentionInterface.register(NAME, packed_attention)
