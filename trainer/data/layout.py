"""Layout of a pack's tokens in rows for attention."""

from dataclasses import dataclass
from functools import cache

import torch

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
