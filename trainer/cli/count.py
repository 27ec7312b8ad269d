"""Counts a dataset's tokens for a base: `python -m trainer.cli.count REQUEST`, where REQUEST is JSON. Prints one JSON
object.

{"hf", "rows", "max_length", "parse_control_tokens"}: counts every valid row of the file `rows` as the trainer sees it,
and lists rows without learned tokens. With "row": the tokens of that row, and which of them the loss counts.
`source_lines`: whether rows name their line in the original file.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.runtime.errors import JobError
from trainer.runtime.protocol import end_with_server, exit_process

os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="true"
)

# The upper bounds of the histogram's bars, in tokens.
BARS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
MAX_LISTED = 100
# The service's limits for rows (server/datasets/rows.ts).
MAX_LINE_BYTES, MAX_DEPTH = 16 << 20, 100
BLANK = " \t\r\n"


def lines_of(path: Path) -> Iterator[tuple[int, int, bytes | None]]:
    """Each row's number and line, both counted from 1, and its bytes; None if the line is too long to load."""
    with path.open("rb") as file:
        row = line = 0
        while piece := file.readline(MAX_LINE_BYTES + 2):
            line += 1
            whole = len(piece.removesuffix(b"\n")) <= MAX_LINE_BYTES
            while not piece.endswith(b"\n") and (more := file.readline(1 << 20)):
                piece = more
            text = piece.removeprefix(b"\xef\xbb\xbf") if line == 1 else piece
            if not whole or text.strip(BLANK.encode()):
                row += 1
                yield row, line, text if whole else None


def learnable_conversation(text: bytes, line: int):
    """The row's conversation; None if the service rejects the row."""
    from trainer.data.dataset import conversation
    from trainer.data.loss_mask import learned

    try:
        messages = conversation(text, line)
    except JobError:
        return None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(json.loads(text)) > MAX_DEPTH:
        return None
    answers = [
        message["content"].strip() or "tool_calls" in message for message in messages if message["role"] == "assistant"
    ]
    try:
        "".join(message["content"] for message in messages).encode()
        json.dumps([messages, messages.tools], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    return messages if all(answers) and any(map(learned, messages)) else None


def _depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def rows_of(path: Path, source_lines: bool) -> Iterator[tuple[int, list[dict]]]:
    """The number of each valid row, and its conversation."""
    for row, line, text in lines_of(path):
        messages = learnable_conversation(text, line) if text is not None else None
        if messages is not None:
            if not source_lines:
                messages.line = line
            yield row, messages


def batches_of(rows: Iterator) -> Iterator[list]:
    from trainer.data.dataset import CHARACTERS_AT_ONCE, TOKENIZE_AT_ONCE

    batch, characters = [], 0
    for row, messages in rows:
        batch.append((row, messages))
        characters += sum(len(message["content"]) for message in messages)
        if characters >= CHARACTERS_AT_ONCE or len(batch) == TOKENIZE_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Count:
    """Running counts over the rows."""

    def __init__(self, tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.bars = [0] * (len(BARS) + 1)
        self.numbers = {"rows": 0, "tokens": 0, "longest": 0, "bounded_rows": 0, "cut_rows": 0, "cut_tokens": 0}
        self.numbers |= {"no_learned_rows": 0, "refused_rows": 0}
        self.listed: dict[str, list[dict]] = {"cut": [], "no_learned": [], "refused": []}

    def add(self, batch: list) -> None:
        from trainer.data.control_text import control_text
        from trainer.data.loss_mask import rendering

        rendered = []
        for row, messages in batch:
            try:
                rendered.append((row, messages, rendering(messages, self.tokenizer)))
            except JobError as problem:
                self._refuse(row, messages, problem)
        texts = [each for _, _, each in rendered]
        try:
            counted = control_text(self.tokenizer).count(texts, self.max_length)
        except JobError:
            # One of the batch is refused: count one by one.
            if len(batch) > 1:
                for row, messages, _ in rendered:
                    self.add([(row, messages)])
                return
            try:
                control_text(self.tokenizer).encode(texts, self.max_length)
            except JobError as problem:
                self._refuse(*batch[0], problem)
            return
        for (row, messages, _), (length, exact) in zip(rendered, counted, strict=True):
            self._add_row(row, messages, length, exact)

    def _add_row(self, row: int, messages, length: int, exact: bool) -> None:
        numbers, over = self.numbers, length - self.max_length
        numbers["rows"] += 1
        numbers["tokens"] += length
        numbers["longest"] = max(numbers["longest"], length)
        numbers["bounded_rows"] += not exact
        self.bars[next((index for index, bar in enumerate(BARS) if length <= bar), len(BARS))] += 1
        if over <= 0:
            return
        row_facts = {"row": row, "line": messages.line, "tokens": length, "at_least": not exact}
        self._list("cut", {**row_facts, "cut_tokens": over})
        numbers["cut_tokens"] += over
        if not self._learned(row, messages):
            self._list("no_learned", row_facts)

    def _learned(self, row: int, messages) -> bool:
        from trainer.data.dataset import tokenize_rows

        ((*_, sequences),) = tokenize_rows([messages], self.tokenizer, self.max_length, [row])
        return any(sequence.trained[: self.max_length].any() for sequence in sequences)

    def _refuse(self, row: int, messages, problem: Exception) -> None:
        self._list("refused", {"row": row, "line": messages.line, "message": str(problem)})

    def _list(self, kind: str, found: dict) -> None:
        self.numbers[f"{kind}_rows"] += 1
        if len(self.listed[kind]) < MAX_LISTED:
            self.listed[kind].append(found)

    def summary(self) -> dict:
        histogram = [
            {"up_to": bar, "rows": number} for bar, number in zip([*BARS, None], self.bars, strict=True) if number
        ]
        return {**self.numbers, "max_length": self.max_length, "histogram": histogram, **self.listed}


def count(tokenizer, path: Path, max_length: int, source_lines: bool = False) -> dict:
    found = Count(tokenizer, max_length)
    for batch in batches_of(rows_of(path, source_lines)):
        found.add(batch)
    return found.summary()


def preview(tokenizer, path: Path, row: int, max_length: int) -> dict:
    from trainer.data.dataset import conversation, tokenize_rows

    line, text = next(((line, text) for number, line, text in lines_of(path) if number == row), (0, None))
    if text is None:
        return {"missing": True}
    messages = conversation(text, line)
    ((*_, whole),) = tokenize_rows([messages], tokenizer, max_length, [row])
    sequences = []
    for sequence in whole:
        pieces = zip(sequence.ids[:max_length].tolist(), sequence.trained.tolist(), strict=False)
        tokens = [{"id": id, "text": tokenizer.decode([id]), "trained": trained} for id, trained in pieces]
        sequences.append({"tokens": tokens, "cut_tokens": max(0, len(sequence.ids) - max_length)})
    return {"messages": list(messages), "sequences": sequences}


def hide_torch() -> None:
    """Makes transformers believe that torch is missing: tokenizers do not need it, and its import takes three
    seconds.
    """
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)


def main() -> None:
    hide_torch()
    from transformers import AutoTokenizer

    request = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(request["hf"], local_files_only=True, trust_remote_code=False)
    parse = tokenizer.parse_control_tokens = request.get("parse_control_tokens", False)
    path = Path(request["rows"])
    if "row" in request:
        found = preview(tokenizer, path, request["row"], request["max_length"])
    else:
        found = count(tokenizer, path, request["max_length"], request.get("source_lines", False)) | {
            "parse_control_tokens": parse
        }
    print(json.dumps(found))


if __name__ == "__main__":
    end_with_server()
    try:
        main()
    except JobError as problem:
        print(json.dumps({"problem": str(problem)}))
    exit_process(0)
