"""Attention for documents packed into one sequence: each sees itself and the shared beginning, and no mask is built for
that.
"""

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"
# Layers whose tokens meet in attention alone. Others (state spaces, convolutions) would carry one document into the
# next.
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
# Documents share a call where the shorter has this part of the longer's length, or both are short: a call costs more
# than its padding.
ALIKE, SHORT = 0.7, 128
CPU = torch.device("cpu")


@cache
def any_lengths(device: torch.device) -> bool:
    """Whether one call takes documents of any lengths there: GPUs since Ampere, by FlashAttention (Dao, 2023, arXiv
    2307.08691).
    """
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True)
class Layout:
    """How a pack's tokens lie in padded rows for attention: documents of like length side by side, each with the shared
    beginning.

    A pack is `shared` tokens, then each document's own. Padding stands at the end of a document, where causal order
    hides it from
    every token before it. Indices are int64.

    `spread` [rows]: the token of each row (padding repeats the document's last). `own` [tokens - shared]: the row of
    each own token.
    `begun` [documents x shared]: the rows of the shared beginning in each document. `place` [tokens]: the row where a
    token's result
    is read. `returned` [rows]: the token whose result is read there, or `tokens` where none is. `blocks`: (documents,
    padded length).
    `ends` int32 [documents + 1]: where documents end, from 0 on, if they may be of any lengths; then none is padded.
    Where nothing is
    shared either, rows are tokens, and there are no indices.
    """

    shared: int
    spread: torch.Tensor | None
    own: torch.Tensor | None
    begun: torch.Tensor | None
    place: torch.Tensor | None
    returned: torch.Tensor | None
    blocks: list[tuple[int, int]]
    ends: torch.Tensor | None = None


def layout_of(shared: int, lengths: list[int], device: torch.device = CPU) -> Layout:
    """The layout of a beginning of `shared` tokens and documents of `lengths` tokens after it."""
    alone = any_lengths(device)
    if alone and not shared:
        return Layout(0, None, None, None, None, None, [(1, length) for length in lengths], _ends(lengths, device))
    tokens = shared + sum(lengths)
    starts = [shared + sum(lengths[:index]) for index in range(len(lengths))]
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    blocks: list[tuple[int, int]] = []
    spread, begun = [], []
    own, returned = torch.empty(tokens - shared, dtype=torch.int64), []
    beginning, row = torch.arange(shared), 0
    for index in order:
        length = shared + lengths[index]
        if blocks and not alone and (length >= ALIKE * blocks[-1][1] or blocks[-1][1] <= SHORT):
            blocks[-1] = (blocks[-1][0] + 1, blocks[-1][1])
        else:
            blocks.append((1, length))
        padded = blocks[-1][1]
        mine = torch.arange(starts[index], starts[index] + lengths[index])
        padding = padded - length
        spread.append(torch.cat([beginning, mine, mine[-1:].expand(padding)]))
        own[mine - shared] = torch.arange(row + shared, row + length)
        # The beginning's results are the same in every document; they are read in the first.
        first = beginning if not begun else torch.full_like(beginning, tokens)
        returned.append(torch.cat([first, mine, mine.new_full((padding,), tokens)]))
        begun.append(row + beginning)
        row += padded
    place = torch.cat([begun[0], own])
    indices = on(device, torch.cat(spread), own, torch.cat(begun), place, torch.cat(returned))
    return Layout(shared, *indices, blocks, _ends([length for _, length in blocks], device) if alone else None)


def _ends(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def on(device: torch.device, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of int64 [length] on the device, in one copy: each copy is a wait for all that the device has still to
    do.
    """
    if device.type == "cpu":
        return indices
    return torch.cat(indices).to(device).split([len(each) for each in indices])


def spread(states: torch.Tensor, layout: Layout) -> torch.Tensor:
    """[tokens, ...] to padded rows [rows, ...]."""
    return states if layout.spread is None else states.index_select(0, layout.spread)


def spread_back(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The gradient of `spread`'s rows as that of its tokens: the shared beginning collects that of all documents."""
    if layout.own is None:
        return gradient
    out = gradient.new_empty(layout.shared + len(layout.own), *gradient.shape[1:])
    out[layout.shared :] = gradient.index_select(0, layout.own)
    if layout.shared:
        begun = gradient.index_select(0, layout.begun)
        torch.sum(begun.view(-1, layout.shared, *gradient.shape[1:]), dim=0, out=out[: layout.shared])
    return out


def collect(rows: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Attention's results [rows, ...] as those of the tokens [tokens, ...]."""
    return rows if layout.place is None else rows.index_select(0, layout.place)


def collect_back(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout.returned is None:
        return gradient
    nothing = gradient.new_zeros(1, *gradient.shape[1:])
    return torch.cat([gradient, nothing]).index_select(0, layout.returned)


def attend(
    rows: torch.Tensor,
    heads: int,
    key_heads: int,
    layout: Layout,
    scaling: float | None,
    window: int | None,
    dropout: float = 0.0,
):
    """Causal attention within each document. rows [rows, heads + 2 key heads, size] of q, k and v; returns [rows,
    heads, size].
    """
    if layout.ends is not None and fits_at_once(rows.dtype, rows.shape[-1]) and not dropout:
        return _attend_at_once(rows, heads, key_heads, layout, scaling, window)
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


def fits_at_once(dtype: torch.dtype, head_size: int) -> bool:
    """Whether one call takes documents of any lengths, where there is such a call."""
    return dtype.itemsize == 2 and head_size % 8 == 0 and head_size <= 256


def _attend_at_once(
    rows: torch.Tensor, heads: int, key_heads: int, layout: Layout, scaling: float | None, window: int | None
):
    from torch.nn.attention import varlen

    longest = max(length for _, length in layout.blocks)
    q, k, v = rows.split([heads, key_heads, key_heads], dim=1)
    # Releases before 2.12 take fewer key heads without being told.
    told = (
        {"enable_gqa": heads != key_heads} if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters else {}
    )
    back = -1 if window is None else window - 1
    return varlen.varlen_attn(
        q, k, v, layout.ends, layout.ends, longest, longest, scale=scaling, window_size=(back, 0), **told
    )


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, layout):
        ctx.layout = layout
        return spread(states, layout)

    @staticmethod
    def backward(ctx, gradient):
        return spread_back(gradient, ctx.layout), None


class Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, layout):
        ctx.layout = layout
        return collect(rows, layout)

    @staticmethod
    def backward(ctx, gradient):
        return collect_back(gradient, ctx.layout), None


def packed_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """What transformers calls.

    Shapes: query [1, heads, tokens, size], key and value [1, key heads, tokens, size]; returns [1, tokens, heads,
    size].
    `layout` comes through the model's keyword arguments; a model that drops it fails here rather than mix documents.
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
        Spread.apply(states, layout),
        query.shape[1],
        key.shape[1],
        layout,
        scaling,
        kwargs.get("sliding_window"),
        dropout,
    )
    return Collect.apply(rows, layout)[None], None


def packable(config) -> bool:
    """Whether documents of a model with this configuration may share a sequence."""
    return set(getattr(config, "layer_types", None) or ["full_attention"]) <= PACKABLE_LAYERS


# A name for which transformers knows no way to make a mask: it then makes none.
AttentionInterface.register(NAME, packed_attention)
