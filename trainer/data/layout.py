"""Layout of a pack's tokens in rows for attention."""

from dataclasses import dataclass, replace
from functools import cache, cached_property

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
    the prefix that it shares.

    A pack is `shared` tokens of prefixes, then each document's own tokens. Padding goes at the end of a document, where
    causal order hides it from every token before it. Indices are int64.

    `scatter_index` [rows]: the token of each row (padding repeats the document's last token).
    `own_rows` [tokens - shared]: the row of each own token.
    `prefix_rows` [sharing x shared]: the rows of the prefixes' tokens in each of the documents that share them.
    `position` [tokens]: the row from which a token's result is read.
    `result_tokens` [rows]: the token whose result is read from the row, or `tokens` if none is.
    `blocks`: (documents, padded length) of each attention call.
    `ends` int32 [documents + 1]: cumulative document lengths from 0, only with variable-length attention, which needs
    no padding. If nothing is shared either, rows are tokens and there are no indices.
    `documents` int64 [documents, 5], only on the CPU: where each document's prefix begins among the tokens, its length,
    where its own tokens begin, their number, and 1 for the first document of a prefix.
    `mutual` int64 [rows]: rows of one document with the same number, other than 0, attend to each other in both
    directions; None: none do.
    """

    shared: int
    scatter_index: torch.Tensor | None
    own_rows: torch.Tensor | None
    prefix_rows: torch.Tensor | None
    position: torch.Tensor | None
    result_tokens: torch.Tensor | None
    blocks: list[tuple[int, int]]
    ends: torch.Tensor | None = None
    documents: torch.Tensor | None = None
    mutual: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens in the pack."""
        return sum(rows * length for rows, length in self.blocks) if self.position is None else len(self.position)

    @cached_property
    def long_ends(self) -> torch.Tensor:
        """`ends` as int64, always the same tensor: kernels remember what they computed for one."""
        assert self.ends is not None
        return self.ends.long()

    @cached_property
    def previous(self) -> torch.Tensor:
        """The token before each in its document, or -1: int64 [tokens]. Only where there are `documents`."""
        assert self.documents is not None
        prefix_start, prefix, own_start, own, _ = self.documents.unbind(1)
        found = torch.arange(self.shared + int(own.sum())) - 1
        found[prefix_start[prefix > 0]] = -1
        found[own_start[own > 0]] = torch.where(prefix > 0, prefix_start + prefix - 1, -1)[own > 0]
        return found


def with_mutual(layout: Layout, numbers: torch.Tensor) -> Layout:
    """The layout of documents in which tokens with the same number, other than 0, attend to each other. `numbers`:
    int64 [tokens], on the layout's device; 0 for the last token of a document, which padding repeats.
    """
    rows = numbers if layout.scatter_index is None else numbers.index_select(0, layout.scatter_index)
    return replace(layout, mutual=rows)


def layout_of(prefixes: list[int], lengths: list[int], device: torch.device = CPU) -> Layout:
    """The layout of documents of `lengths` tokens behind the prefixes that they share, which have `prefixes` tokens.

    Consecutive documents share a prefix, as many for each prefix; with one prefix all documents share it.
    """
    shared, varlen_supported = sum(prefixes), supports_varlen(device)
    if varlen_supported and not shared:
        return Layout(0, None, None, None, None, None, [(1, length) for length in lengths], _ends(lengths, device))
    tokens, sharing = shared + sum(lengths), len(lengths) // len(prefixes)
    starts = [shared + sum(lengths[:index]) for index in range(len(lengths))]
    prefix_starts = [sum(prefixes[:index]) for index in range(len(prefixes))]
    order = sorted(range(len(lengths)), key=lambda index: -prefixes[index // sharing] - lengths[index])
    blocks: list[tuple[int, int]] = []
    scatter_index: list[torch.Tensor] = []
    result_tokens: list[torch.Tensor] = []
    seen, row = [0] * len(prefixes), 0
    prefix_rows = torch.empty(sharing, shared, dtype=torch.int64)
    own_rows = torch.empty(tokens - shared, dtype=torch.int64)
    for index in order:
        own_length, which = lengths[index], index // sharing
        prefix = torch.arange(prefix_starts[which], prefix_starts[which] + prefixes[which])
        length = len(prefix) + own_length
        if blocks and not varlen_supported and (length >= SIMILAR * blocks[-1][1] or blocks[-1][1] <= SHORT):
            blocks[-1] = (blocks[-1][0] + 1, blocks[-1][1])
        else:
            blocks.append((1, length))
        padded = blocks[-1][1]
        own_tokens = torch.arange(starts[index], starts[index] + own_length)
        padding = padded - length
        scatter_index.append(torch.cat([prefix, own_tokens, own_tokens[-1:].expand(padding)]))
        own_rows[own_tokens - shared] = torch.arange(row + len(prefix), row + length)
        # A prefix has the same results in each of its documents; they are read from the first.
        first = prefix if seen[which] == 0 else torch.full_like(prefix, tokens)
        result_tokens.append(torch.cat([first, own_tokens, own_tokens.new_full((padding,), tokens)]))
        prefix_rows[seen[which], prefix] = torch.arange(row, row + len(prefix))
        seen[which] += 1
        row += padded
    position = torch.cat([prefix_rows[0], own_rows])
    scatter, to_own, to_prefix, to_position, to_result = to_device(
        device, torch.cat(scatter_index), own_rows, prefix_rows.flatten(), position, torch.cat(result_tokens)
    )
    indices = (shared, scatter, to_own, to_prefix, to_position, to_result, blocks)
    if varlen_supported:
        return Layout(*indices, _ends([length for _, length in blocks], device))
    documents = [
        (prefix_starts[index // sharing], prefixes[index // sharing], starts[index], own_length, index % sharing == 0)
        for index, own_length in enumerate(lengths)
    ]
    return Layout(*indices, documents=torch.tensor(documents) if device.type == "cpu" else None)


def _ends(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def to_device(device: torch.device, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Moves int64 tensors [length] to the device in one copy: each copy waits for all work queued on the device."""
    if device.type == "cpu":
        return indices
    return torch.cat(indices).to(device).split_with_sizes([len(index) for index in indices])
