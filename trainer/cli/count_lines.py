"""The rows of a dataset's file that are counted, and their conversations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainer.data.rows import Conversation

BLOCK_BYTES, LARGE_LINE_BYTES = 4 << 20, 1 << 20


class Block(NamedTuple):
    """Rows of a file: the bytes `[start, end)`; None: to its end. `row`: how many are before it. `large`: it has a row
    that needs much memory.
    """

    start: int = 0
    end: int | None = None
    row: int = 0
    large: bool = False


WHOLE = Block()
# The number of a row, and its conversations: one, or two of a pair.
CountedRow = tuple[int, "list[Conversation]"]


def lines_of(path: Path, block: Block = WHOLE) -> Iterator[tuple[int, int, bytes]]:
    """Each row's number, counted from 1, the byte after it, and its bytes."""
    with path.open("rb") as file:
        if block.start:
            file.seek(block.start)
        row, end = block.row, block.start
        while (block.end is None or end < block.end) and (line := file.readline()):
            row += 1
            end += len(line)
            yield row, end, line


def blocks_of(path: Path) -> Iterator[Block]:
    """The file in blocks of some MB."""
    start, last, large = 0, 0, False
    for row, end, line in lines_of(path):
        large |= len(line) > LARGE_LINE_BYTES
        if end - start >= BLOCK_BYTES:
            yield Block(start, end, last, large)
            start, last, large = end, row, False
    yield Block(start, None, last, large)


def rows_of(path: Path, objective: str, block: Block) -> Iterator[CountedRow]:
    """The rows of a block, parsed."""
    from trainer.data.dataset import conversations_of
    from trainer.data.rows import parse_row

    for number, _, line in lines_of(path, block):
        yield number, conversations_of(parse_row(line, number, objective))


def batches_of(rows: Iterator[CountedRow]) -> Iterator[list[CountedRow]]:
    """The rows of `rows_of` in groups to tokenize at once, bounded in rows and characters."""
    from trainer.data.content import text_of
    from trainer.data.dataset import CHARACTERS_AT_ONCE, TOKENIZE_AT_ONCE

    batch: list[CountedRow] = []
    characters = 0
    for row, conversations in rows:
        batch.append((row, conversations))
        characters += sum(len(text_of(message["content"])) for messages in conversations for message in messages)
        if characters >= CHARACTERS_AT_ONCE or len(batch) == TOKENIZE_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
