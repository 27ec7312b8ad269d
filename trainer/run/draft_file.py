"""The answers that a model was taught, for the engine to draft its own from: their tokens and a suffix array over them.

The file, little-endian: `TNDRAFT1`, uint32 number of tokens, uint32 size of the vocabulary, uint32 tokens, uint32
suffixes. The tokens are those of each answer behind a separator; the suffixes are the positions of all tokens, sorted
by the text that begins there. `engine/models/draft-file.ts` reads it.
"""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from trainer.data.dataset import Row, Sequence

MAGIC = b"TNDRAFT1"
# The largest of all symbols, and no token.
SEPARATOR = 0xFFFFFFFF
# 2 MB in the engine's memory for each model that is loaded.
MOST_TOKENS = 1 << 18


def write_drafts(rows: list[Row], objective: str, vocab_size: int, path: Path, most: int = MOST_TOKENS) -> Path | None:
    """Writes the distinct answers of `rows`, an even sample of them if they have more than `most` tokens and
    separators. None, and no file, if there is nothing to draft from.
    """
    tokens = joined(sample(distinct(answers(rows, objective)), most))
    if not len(tokens):
        return None
    header = np.array([len(tokens), vocab_size], dtype="<u4")
    with path.open("wb") as file:
        file.write(MAGIC)
        for numbers in (header, tokens.astype("<u4"), suffix_array(tokens).astype("<u4")):
            file.write(numbers.data)
    return path


def answers(rows: list[Row], objective: str) -> Iterator[np.ndarray]:
    """The tokens of each answer that `rows` teach, int32 [tokens]: every run of learned tokens, with the token that
    ends its turn. Of a pair the chosen answer, of rated answers the good ones.
    """
    for row in rows:
        if row.label is not False:
            for sequence in row.sequences[:1] if objective == "dpo" else row.sequences:
                yield from _learned_runs(sequence)


def _learned_runs(sequence: Sequence) -> Iterator[np.ndarray]:
    # The vectors of pictures are no tokens.
    learned = sequence.trained if sequence.vectors is None else sequence.trained & (sequence.vectors < 0)
    # The first token of a sequence is never learned: nothing precedes it.
    edges = [*(np.flatnonzero(learned[1:] != learned[:-1]) + 1).tolist(), len(learned)]
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        yield sequence.ids[start:end]


def distinct(answers: Iterator[np.ndarray]) -> list[np.ndarray]:
    """Each answer, int32 [tokens], once, in their order. Remembers hashes: copies would take too much memory."""
    seen: dict[bytes, np.ndarray] = {}
    for answer in answers:
        seen.setdefault(blake2b(answer.data, digest_size=16).digest(), answer)
    return list(seen.values())


def sample(answers: list[np.ndarray], most: int) -> list[np.ndarray]:
    """Answers, each [tokens], with at most `most` tokens and separators in all, taken evenly from all of them."""
    costs = [len(answer) + 1 for answer in answers]
    total, passed, used = sum(costs), 0, 0
    if total <= most:
        return answers
    kept: list[np.ndarray] = []
    for answer, cost in zip(answers, costs, strict=True):
        passed += cost
        # What is used never runs ahead of its share of what has passed.
        if used + cost <= most * passed // total:
            kept.append(answer)
            used += cost
    return kept


def joined(answers: list[np.ndarray]) -> np.ndarray:
    """uint32 [tokens]: each answer behind a separator."""
    separator = np.array([SEPARATOR], dtype=np.uint32)
    parts = [part for answer in answers for part in (separator, answer.astype(np.uint32))]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32)


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """int64 [tokens]: the positions, sorted by the tokens from there to the end. A text sorts after its prefixes.

    Prefix doubling (Manber and Myers, 1990): ranks by the first n tokens give those by the first 2n.
    """
    count = len(tokens)
    symbols, rank = np.unique(tokens, return_inverse=True)
    ranks, length = len(symbols), 1
    order = np.argsort(rank)
    while ranks < count:
        # 0 stands for the end, which is less than any symbol.
        following = np.zeros(count, dtype=np.int64)
        following[: max(0, count - length)] = rank[length:] + 1
        key = rank * (count + 1) + following
        order = np.argsort(key)
        differs = np.diff(key[order]) != 0
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(differs)])
        ranks, length = int(rank[order[-1]]) + 1, 2 * length
    return order
