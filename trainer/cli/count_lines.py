"""The rows of a dataset's file that are counted, and their conversations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.runtime.errors import JobError

# The service's limits for rows (server/datasets/rows.ts).
MAX_LINE_BYTES, MAX_PICTURE_LINE_BYTES, MAX_DEPTH = 16 << 20, 32 << 20, 100
BLANK = " \t\r\n"
# Of a lone surrogate: its escape, its bytes, and zeros, as JSON may be in UTF-16.
MAY_BE_SURROGATE = (b"\\ud", b"\\uD", b"\xed", b"\x00")
BLOCK_BYTES, LARGE_LINE_BYTES = 4 << 20, 1 << 20


class Block(NamedTuple):
    """Lines of a file: the bytes `[start, end)`; None: to its end. `row` and `line`: how many are before it. `large`:
    it has a line that needs much memory.
    """

    start: int = 0
    end: int | None = None
    row: int = 0
    line: int = 0
    large: bool = False


WHOLE = Block()


def lines_of(path: Path, block: Block = WHOLE) -> Iterator[tuple[int, int, int, bytes | None]]:
    """Each row's number and line, both counted from 1, the byte after it, and its bytes; None if the line is too long
    to load.
    """
    with path.open("rb") as file:
        if block.start:
            file.seek(block.start)
        row, line, end = block.row, block.line, block.start
        while (block.end is None or end < block.end) and (piece := file.readline(MAX_PICTURE_LINE_BYTES + 2)):
            line += 1
            end += len(piece)
            length = len(piece.removesuffix(b"\n"))
            whole = length <= MAX_LINE_BYTES or (length <= MAX_PICTURE_LINE_BYTES and b'"image_url"' in piece)
            while not piece.endswith(b"\n") and (more := file.readline(1 << 20)):
                piece = more
                end += len(piece)
            text = piece.removeprefix(b"\xef\xbb\xbf") if line == 1 else piece
            if not whole or text.strip(BLANK.encode()):
                row += 1
                yield row, line, end, text if whole else None


def blocks_of(path: Path) -> Iterator[Block]:
    """The file in blocks of some MB."""
    start, last, large = 0, (0, 0), False
    for row, line, end, text in lines_of(path):
        large |= text is None or len(text) > LARGE_LINE_BYTES
        if end - start >= BLOCK_BYTES:
            yield Block(start, end, *last, large)
            start, last, large = end, (row, line), False
    yield Block(start, None, *last, large)


def learnable_row(text: bytes, line: int, objective: str):
    """The row; None if the service rejects it."""
    from trainer.data.dataset import conversations_of
    from trainer.data.rows import parse_row

    try:
        row = parse_row(text, line, objective)
    except JobError:
        return None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(json.loads(text)) > MAX_DEPTH:
        return None
    conversations = conversations_of(row)
    if any(each in text for each in MAY_BE_SURROGATE) and not all(map(_is_text, conversations)):
        return None
    return row if all(map(_learnable, conversations)) else None


def _is_text(messages) -> bool:
    from trainer.data.content import text_of

    try:
        "".join(text_of(message["content"]) for message in messages).encode()
        json.dumps([messages, messages.tools], ensure_ascii=False, default=lambda picture: None).encode()
    except UnicodeEncodeError:
        return False
    return True


def _learnable(messages) -> bool:
    from trainer.data.loss_mask import learned

    answers = [
        message["content"].strip() or "tool_calls" in message for message in messages if message["role"] == "assistant"
    ]
    return all(answers) and any(map(learned, messages))


def _depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def rows_of(path: Path, source_lines: bool, objective: str, block: Block) -> Iterator[tuple[int, list]]:
    """The number of each valid row, and its conversations: one, or two of a pair."""
    from trainer.data.dataset import conversations_of

    for number, line, _, text in lines_of(path, block):
        row = learnable_row(text, line, objective) if text is not None else None
        if row is not None:
            conversations = conversations_of(row)
            if not source_lines:
                for conversation in conversations:
                    conversation.line = line
            yield number, conversations


def batches_of(rows: Iterator) -> Iterator[list]:
    from trainer.data.content import text_of
    from trainer.data.dataset import CHARACTERS_AT_ONCE, TOKENIZE_AT_ONCE

    batch, characters = [], 0
    for row, conversations in rows:
        batch.append((row, conversations))
        characters += sum(len(text_of(message["content"])) for messages in conversations for message in messages)
        if characters >= CHARACTERS_AT_ONCE or len(batch) == TOKENIZE_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
