"""Tokens of a pack to the padded rows of attention, and back."""

import torch

from trainer.data.layout import Layout


def scatter(states: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Tokens [tokens, ...] to padded rows [rows, ...]."""
    return states if layout.scatter_index is None else states.index_select(0, layout.scatter_index)


def scatter_backward(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The backward pass of `scatter`: gradients of rows [rows, ...] to gradients of tokens [tokens, ...]. The shared
    prefix sums those of all documents.
    """
    # Both are there, or neither.
    if layout.own_rows is None or layout.prefix_rows is None:
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
    """The backward pass of `gather`: gradients of tokens [tokens, ...] to gradients of rows [rows, ...], 0 for rows
    that no result is read from.
    """
    if layout.result_tokens is None:
        return gradient
    zeros = gradient.new_zeros(1, *gradient.shape[1:])
    return torch.cat([gradient, zeros]).index_select(0, layout.result_tokens)
