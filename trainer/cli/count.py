"""Counts a dataset's tokens for a base: `python -m trainer.cli.count REQUEST`, where REQUEST is JSON. Prints one JSON
object.

{"hf", "rows", "max_length", "objective", "source_lines", "parse_control_tokens"}: counts every valid row of the file
`rows` as the trainer sees it, and lists rows without learned tokens. With "row": the tokens of that row, and which of
them the loss counts. `source_lines`: whether rows name their line in the original file.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.runtime.errors import JobError
from trainer.runtime.process import importing
from trainer.runtime.protocol import end_with_server, exit_process

os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="true"
)

# The upper bounds of the histogram's bars, in tokens.
BARS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
MAX_LISTED = 100
# The service's limits for rows (server/datasets/rows.ts).
MAX_LINE_BYTES, MAX_PICTURE_LINE_BYTES, MAX_DEPTH = 16 << 20, 32 << 20, 100
BLANK = " \t\r\n"


def lines_of(path: Path) -> Iterator[tuple[int, int, bytes | None]]:
    """Each row's number and line, both counted from 1, and its bytes; None if the line is too long to load."""
    with path.open("rb") as file:
        row = line = 0
        while piece := file.readline(MAX_PICTURE_LINE_BYTES + 2):
            line += 1
            length = len(piece.removesuffix(b"\n"))
            whole = length <= MAX_LINE_BYTES or (length <= MAX_PICTURE_LINE_BYTES and b'"image_url"' in piece)
            while not piece.endswith(b"\n") and (more := file.readline(1 << 20)):
                piece = more
            text = piece.removeprefix(b"\xef\xbb\xbf") if line == 1 else piece
            if not whole or text.strip(BLANK.encode()):
                row += 1
                yield row, line, text if whole else None


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
    return row if all(map(_learnable, conversations_of(row))) else None


def _learnable(messages) -> bool:
    from trainer.data.content import text_of
    from trainer.data.loss_mask import learned

    answers = [
        message["content"].strip() or "tool_calls" in message for message in messages if message["role"] == "assistant"
    ]
    try:
        "".join(text_of(message["content"]) for message in messages).encode()
        json.dumps([messages, messages.tools], ensure_ascii=False, default=lambda picture: None).encode()
    except UnicodeEncodeError:
        return False
    return all(answers) and any(map(learned, messages))


def _depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def rows_of(path: Path, source_lines: bool, objective: str) -> Iterator[tuple[int, list]]:
    """The number of each valid row, and its conversations: one, or two of a pair."""
    from trainer.data.dataset import conversations_of

    for number, line, text in lines_of(path):
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


class Count:
    """Running counts over the rows. The length of a pair is that of its longer conversation."""

    def __init__(self, tokenizer, max_length: int, preferences: bool) -> None:
        self.tokenizer, self.max_length, self.preferences = tokenizer, max_length, preferences
        self.bars = [0] * (len(BARS) + 1)
        self.numbers = {"rows": 0, "tokens": 0, "longest": 0, "bounded_rows": 0, "cut_rows": 0, "cut_tokens": 0}
        self.numbers |= {"no_learned_rows": 0, "refused_rows": 0}
        self.listed: dict[str, list[dict]] = {"cut": [], "no_learned": [], "refused": []}

    def add(self, batch: list) -> None:
        from trainer.data.control_text import control_text
        from trainer.data.loss_mask import rendering

        rendered = []
        for row, conversations in batch:
            try:
                texts = [rendering(each, self.tokenizer) for each in conversations]
                extra = [self._extra_tokens(text) for text in texts]
                rendered.append((row, conversations, texts, extra))
            except JobError as problem:
                self._refuse(row, conversations, problem)
        texts = [text for _, _, row_texts, _ in rendered for text in row_texts]
        try:
            counted = control_text(self.tokenizer).count(texts, self.max_length)
        except JobError:
            # One of the batch is refused: count one by one.
            if len(batch) > 1:
                for row, conversations, *_ in rendered:
                    self.add([(row, conversations)])
                return
            try:
                control_text(self.tokenizer).encode(texts, self.max_length)
            except JobError as problem:
                self._refuse(*batch[0], problem)
            return
        remaining = iter(counted)
        for row, conversations, _, extra in rendered:
            lengths = [next(remaining) for _ in conversations]
            self._add_row(
                row,
                conversations,
                [(length + more, exact) for (length, exact), more in zip(lengths, extra, strict=True)],
            )

    def _extra_tokens(self, text) -> int:
        """The tokens that pictures have beside their placeholders."""
        return self.tokenizer.sight.extra_tokens(text.pictures) if text.pictures else 0

    def _add_row(self, row: int, conversations: list, counted: list[tuple[int, bool]]) -> None:
        length, exact = max(length for length, _ in counted), all(exact for _, exact in counted)
        numbers, over = self.numbers, length - self.max_length
        numbers["rows"] += 1
        numbers["tokens"] += sum(length for length, _ in counted)
        numbers["longest"] = max(numbers["longest"], length)
        numbers["bounded_rows"] += not exact
        self.bars[next((index for index, bar in enumerate(BARS) if length <= bar), len(BARS))] += 1
        if over <= 0:
            return
        row_facts = {"row": row, "line": conversations[0].line, "tokens": length, "at_least": not exact}
        self._list("cut", {**row_facts, "cut_tokens": over})
        numbers["cut_tokens"] += over
        if not self._learned(row, conversations):
            self._list("no_learned", row_facts)

    def _learned(self, row: int, conversations: list) -> bool:
        return bool(cut_row(conversations, self.tokenizer, self.max_length, row, self.preferences))

    def _refuse(self, row: int, conversations: list, problem: Exception) -> None:
        self._list("refused", {"row": row, "line": conversations[0].line, "message": str(problem)})

    def _list(self, kind: str, found: dict) -> None:
        self.numbers[f"{kind}_rows"] += 1
        if len(self.listed[kind]) < MAX_LISTED:
            self.listed[kind].append(found)

    def summary(self) -> dict:
        histogram = [
            {"up_to": bar, "rows": number} for bar, number in zip([*BARS, None], self.bars, strict=True) if number
        ]
        return {**self.numbers, "max_length": self.max_length, "histogram": histogram, **self.listed}


def cut_row(conversations: list, tokenizer, max_length: int, row: int, preferences: bool) -> list:
    """The sequences of a row that are learned from, cut to `max_length`."""
    from trainer.data.dataset import cut_end, cut_front, tokenize_rows

    length = None if preferences else max_length
    tokenized = tokenize_rows(conversations, tokenizer, length, [row] * len(conversations))
    sequences = [sequence for *_, found in tokenized for sequence in found]
    return cut_front(sequences, max_length) if preferences else cut_end(sequences, max_length)


def count(tokenizer, path: Path, max_length: int, source_lines: bool = False, objective: str = "sft") -> dict:
    found = Count(tokenizer, max_length, objective != "sft")
    for batch in batches_of(rows_of(path, source_lines, objective)):
        found.add(batch)
    return found.summary()


def preview(tokenizer, path: Path, row: int, max_length: int, objective: str = "sft") -> dict:
    from trainer.data.dataset import conversations_of, tokenize_rows
    from trainer.data.rows import parse_row

    line, text = next(((line, text) for number, line, text in lines_of(path) if number == row), (0, None))
    if text is None:
        return {"missing": True}
    conversations, preferences = conversations_of(parse_row(text, line, objective)), objective != "sft"
    tokenized = tokenize_rows(conversations, tokenizer, None if preferences else max_length, [row] * len(conversations))
    whole = [sequence for *_, found in tokenized for sequence in found]
    over = max(0, max(len(sequence.ids) for sequence in whole) - max_length) if preferences else 0
    sequences = []
    for sequence in whole:
        # Preferences are cut at the front, both conversations of a pair alike.
        shown = slice(over, over + max_length)
        pieces = zip(sequence.ids[shown].tolist(), sequence.trained[shown].tolist(), strict=True)
        tokens = [{"id": id, "text": tokenizer.decode([id]), "trained": trained} for id, trained in pieces]
        sequences.append({"tokens": tokens, "cut_tokens": over or max(0, len(sequence.ids) - max_length)})
    messages = [{**message, "content": _shown(message["content"], tokenizer)} for message in conversations[0]]
    return {"messages": messages, "sequences": sequences}


def _shown(content, tokenizer):
    """A message's content with what a preview says of its pictures."""
    if isinstance(content, str):
        return content
    return [
        part
        if part["type"] == "text"
        else {
            "type": "image",
            "sha256": part["picture"].sha256,
            "width": part["picture"].width,
            "height": part["picture"].height,
            "tokens": len(tokenizer.sight.shown(part["picture"]).ids),
        }
        for part in content
    ]


def hide_torch() -> None:
    """Makes transformers believe that torch is missing: tokenizers do not need it, and its import takes three
    seconds.
    """
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)


def main() -> None:
    hide_torch()
    with importing():
        from transformers import AutoConfig, AutoTokenizer

        from trainer.data.sight import sight_of

    request = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(request["hf"], local_files_only=True, trust_remote_code=False)
    parse = tokenizer.parse_control_tokens = request.get("parse_control_tokens", False)
    folder = Path(request["hf"])
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.sight = sight_of(config, folder, tokenizer)
    path = Path(request["rows"])
    if "row" in request:
        found = preview(tokenizer, path, request["row"], request["max_length"], request["objective"])
    else:
        counted = count(tokenizer, path, request["max_length"], request["source_lines"], request["objective"])
        found = {**counted, "parse_control_tokens": parse}
    print(json.dumps(found))


if __name__ == "__main__":
    end_with_server()
    try:
        main()
    except JobError as problem:
        print(json.dumps({"problem": str(problem)}))
    exit_process(0)
