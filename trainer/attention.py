"""Attention for documents packed into one sequence: each sees itself and the shared beginning, and no mask is ever built."""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"
# Layers whose tokens meet in attention alone. Others (state spaces, convolutions) would carry one document into the next.
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}


def packed_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Causal attention over a pack: a beginning of `shared` tokens, then documents of `lengths` tokens that each continue it.

    Shapes: query [1, heads, tokens, size], key and value [1, key heads, tokens, size]; returns [1, tokens, heads, size].
    `shared` and `lengths` come through the model's keyword arguments; a model that drops them fails here rather than mix documents.
    Causal order by `is_causal` needs no mask, and lets the kernel skip half of the work; it needs as many queries as keys, so
    each document repeats the shared queries, whose results are dropped: attention is a small part of the cost at these lengths.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise NotImplementedError("This model's attention has parts (soft cap or sinks) that packed training does not have yet.")
    shared, lengths = kwargs["shared"], kwargs["lengths"]
    window = kwargs.get("sliding_window")
    grouped = query.shape[1] != key.shape[1]

    def attend(q, k, v):
        length = q.shape[2]
        mask = None
        if window is not None and length > window:
            position = torch.arange(length, device=q.device)
            distance = position[:, None] - position[None, :]
            mask = (distance >= 0) & (distance < window)
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )

    # Split, not sliced: the gradient of a split is one concatenation, of slices a sum of zero-padded copies of the whole.
    pieces = list(zip(*(states.split([shared, *lengths], dim=2) for states in (query, key, value)), strict=True))
    beginning, documents = pieces[0], pieces[1:]
    if not shared:
        parts = [attend(*own) for own in documents]
    else:
        parts = [attend(*beginning)]
        for own in documents:
            joined = [torch.cat(pair, dim=2) for pair in zip(beginning, own, strict=True)]
            parts.append(attend(*joined)[:, :, shared:])
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def packable(config) -> bool:
    """Whether documents of a model with this configuration may share a sequence."""
    return set(getattr(config, "layer_types", None) or ["full_attention"]) <= PACKABLE_LAYERS


# A name for which transformers knows no way to make a mask: it then makes none.
AttentionInterface.register(NAME, packed_attention)
