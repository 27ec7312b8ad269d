"""Counts a dataset's tokens for a base: `python -m trainer.cli.count REQUEST`, where REQUEST is JSON. Prints one JSON
object.

{"hf", "rows", "max_length", "objective", "parse_control_tokens"}: counts every row of the canonical file `rows` as the
trainer sees it, and lists rows without learned tokens. With "row": the tokens of that row, and which of them the loss
counts. `workers`: so many processes may count a large file.
"""

import importlib.util
import json
import os
import sys
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cli.count_lines import WHOLE, Block, CountedRow, batches_of, blocks_of, lines_of, rows_of
from trainer.cli.count_workers import blocks_from, count_blocks
from trainer.runtime.errors import JobError
from trainer.runtime.process import importing
from trainer.runtime.protocol import end_with_server, exit_process

if TYPE_CHECKING:
    from trainer.data.content import Content
    from trainer.data.control_text import Rendering
    from trainer.data.rows import Conversation
    from trainer.data.sight import Sight
    from trainer.data.tokenizer import Tokenizer

os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="true"
)

# The upper bounds of the histogram's bars, in tokens.
BARS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
MAX_LISTED = 100
# A worker starts in two seconds, in which another counts that many.
BYTES_A_WORKER = 8 << 20


class Totals:
    """Running counts over the rows. The length of a pair is that of its longer conversation."""

    def __init__(self) -> None:
        self.bars = [0] * (len(BARS) + 1)
        self.numbers = {"rows": 0, "tokens": 0, "longest": 0, "bounded_rows": 0, "cut_rows": 0, "cut_tokens": 0}
        self.numbers |= {f"{kind}_rows": 0 for kind in ("no_learned", "lost_thoughts", "refused")}
        self.listed: dict[str, list[dict[str, Any]]] = {
            kind: [] for kind in ("cut", "no_learned", "lost_thoughts", "refused")
        }

    def add_totals(self, bars: list[int], numbers: dict[str, int], listed: dict[str, list[dict[str, Any]]]) -> None:
        """Adds those of the rows that follow."""
        self.bars = [one + other for one, other in zip(self.bars, bars, strict=True)]
        longest = max(self.numbers["longest"], numbers["longest"])
        self.numbers = {name: value + numbers[name] for name, value in self.numbers.items()} | {"longest": longest}
        self.listed = {kind: [*rows, *listed[kind]][:MAX_LISTED] for kind, rows in self.listed.items()}

    def summary(self, max_length: int) -> dict[str, Any]:
        """The counts as they are printed; `max_length` is the one that they were made with."""
        histogram = [
            {"up_to": bar, "rows": number} for bar, number in zip([*BARS, None], self.bars, strict=True) if number
        ]
        return {**self.numbers, "max_length": max_length, "histogram": histogram, **self.listed}


class Count(Totals):
    """Counts rows with a tokenizer."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int, preferences: bool) -> None:
        super().__init__()
        self.tokenizer, self.max_length, self.preferences = tokenizer, max_length, preferences

    def add(self, batch: list[CountedRow]) -> None:
        """Counts rows, each its number and its conversations. Lists those that are refused instead of raising."""
        from trainer.data.control_text import control_text
        from trainer.data.loss_mask import counted_renderings

        bound = None if self.preferences else self.max_length
        rendered: list[tuple[int, list[Conversation], list[Rendering], list[int]]] = []
        for row, conversations in batch:
            try:
                texts = [
                    text
                    for conversation in conversations
                    for text in counted_renderings(conversation, self.tokenizer, bound)
                ]
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
                ((row, conversations),) = batch
                self._refuse(row, conversations, problem)
            return
        remaining = iter(counted)
        for row, conversations, row_texts, extra in rendered:
            lengths = [next(remaining) for _ in row_texts]
            self._add_row(
                row,
                conversations,
                [(length + more, exact) for (length, exact), more in zip(lengths, extra, strict=True)],
            )

    def _extra_tokens(self, text: "Rendering") -> int:
        """The tokens that pictures have beside their placeholders."""
        if not text.pictures or not self.tokenizer.sight:
            return 0
        return self.tokenizer.sight.extra_tokens(text.pictures)

    def _add_row(self, row: int, conversations: list[Any], counted: list[tuple[int, bool]]) -> None:
        from trainer.data.loss_mask import loses_thoughts

        length, exact = max(length for length, _ in counted), all(exact for _, exact in counted)
        numbers, over = self.numbers, length - self.max_length
        if any(loses_thoughts(conversation, self.tokenizer) for conversation in conversations):
            self._list("lost_thoughts", {"row": row, "line": conversations[0].line})
        numbers["rows"] += 1
        numbers["tokens"] += sum(length for length, _ in counted)
        numbers["longest"] = max(numbers["longest"], length)
        numbers["bounded_rows"] += not exact
        self.bars[bisect_left(BARS, length)] += 1
        if over <= 0:
            return
        row_facts = {"row": row, "line": conversations[0].line, "tokens": length, "at_least": not exact}
        self._list("cut", {**row_facts, "cut_tokens": over})
        numbers["cut_tokens"] += over
        if not self._learned(row, conversations):
            self._list("no_learned", row_facts)

    def _learned(self, row: int, conversations: list[Any]) -> bool:
        return bool(cut_row(conversations, self.tokenizer, self.max_length, row, self.preferences))

    def _refuse(self, row: int, conversations: list[Any], problem: Exception) -> None:
        self._list("refused", {"row": row, "line": conversations[0].line, "message": str(problem)})

    def _list(self, kind: str, entry: dict[str, Any]) -> None:
        self.numbers[f"{kind}_rows"] += 1
        if len(self.listed[kind]) < MAX_LISTED:
            self.listed[kind].append(entry)


def cut_row(
    conversations: list[Any], tokenizer: "Tokenizer", max_length: int, row: int, preferences: bool
) -> list[Any]:
    """The sequences of a row that are learned from, cut to `max_length`."""
    from trainer.data.dataset import cut_end, cut_front, tokenize_rows

    length = None if preferences else max_length
    tokenized = tokenize_rows(conversations, tokenizer, length, [row] * len(conversations))
    sequences = [sequence for *_, row_sequences in tokenized for sequence in row_sequences]
    return cut_front(sequences, max_length) if preferences else cut_end(sequences, max_length)


def count(tokenizer: "Tokenizer", path: Path, max_length: int, objective: str = "sft", block: Block = WHOLE) -> Count:
    """Counts the rows of a canonical file, or of a block of it."""
    counted = Count(tokenizer, max_length, objective != "sft")
    for batch in batches_of(rows_of(path, objective, block)):
        counted.add(batch)
    return counted


def preview(tokenizer: "Tokenizer", path: Path, row: int, max_length: int, objective: str = "sft") -> dict[str, Any]:
    """The tokens of a row (counted from 1), cut to `max_length` as in training, and which of them the loss counts."""
    from trainer.data.dataset import conversations_of, tokenize_rows
    from trainer.data.rows import parse_row

    line = next((line for number, _, line in lines_of(path) if number == row), None)
    if line is None:
        return {"missing": True}
    conversations, preferences = conversations_of(parse_row(line, row, objective)), objective != "sft"
    tokenized = tokenize_rows(conversations, tokenizer, None if preferences else max_length, [row] * len(conversations))
    whole = [sequence for *_, row_sequences in tokenized for sequence in row_sequences]
    over = max(0, max(len(sequence.ids) for sequence in whole) - max_length) if preferences else 0
    sequences: list[dict[str, Any]] = []
    for sequence in whole:
        # Preferences are cut at the front, both conversations of a pair alike.
        shown = slice(over, over + max_length)
        pieces = zip(sequence.ids[shown].tolist(), sequence.trained[shown].tolist(), strict=True)
        tokens = [{"id": id, "text": tokenizer.decode([id]), "trained": trained} for id, trained in pieces]
        sequences.append({"tokens": tokens, "cut_tokens": over or max(0, len(sequence.ids) - max_length)})
    messages = [
        {**message, "content": _shown(message["content"], getattr(tokenizer, "sight", None))}
        for message in conversations[0]
    ]
    return {"messages": messages, "sequences": sequences}


def _shown(content: "Content", sight: "Sight | None") -> "str | list[dict[str, Any]]":
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
            "tokens": len(sight.shown(part["picture"]).ids) if sight else 0,
        }
        for part in content
    ]


def hide_torch() -> None:
    """Makes transformers believe that torch is missing: tokenizers do not need it, and its import takes three
    seconds.
    """
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)


def load_tokenizer(request: dict[str, Any]) -> "Tokenizer":
    """The tokenizer of the request's base, without torch. Raises JobError("base_missing")."""
    hide_torch()
    with importing():
        from transformers import AutoConfig, AutoTokenizer

        from trainer.data.sight import sight_of

    folder = Path(request["hf"])
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = request.get("parse_control_tokens", False)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.sight = sight_of(config, folder, tokenizer)
    return tokenizer


def main() -> None:
    """Answers the request on the command line, or counts the blocks that stdin names, a line each."""
    request = json.loads(sys.argv[1])
    path, max_length, objective = Path(request["rows"]), request["max_length"], request["objective"]
    if "row" in request:
        answer = preview(load_tokenizer(request), path, request["row"], max_length, objective)
    elif "blocks" in request:
        # The other cores have other workers.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenizer = load_tokenizer(request)
        for block in blocks_from(request["blocks"]):
            counted = count(tokenizer, path, max_length, objective, block)
            answer = {"bars": counted.bars, "numbers": counted.numbers, "listed": counted.listed}
            print(json.dumps(answer), flush=True)
        return
    else:
        workers = min(request.get("workers", 1), path.stat().st_size // BYTES_A_WORKER)
        if workers > 1:
            totals = Totals()
            for part in count_blocks(request, blocks_of(path), workers):
                totals.add_totals(**part)
        else:
            totals = count(load_tokenizer(request), path, max_length, objective)
        answer = {**totals.summary(max_length), "parse_control_tokens": request.get("parse_control_tokens", False)}
    print(json.dumps(answer))


if __name__ == "__main__":
    end_with_server()
    try:
        main()
    except JobError as problem:
        print(json.dumps({"problem": str(problem)}))
    exit_process(0)
