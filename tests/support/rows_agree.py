"""Compares what counting, preview and training make of the same canonical rows: `python -m tests.support.rows_agree
REQUEST`, where REQUEST is JSON: {"tokenizer", "templates", "files"}, with the path of the rows of each objective in
`files`. Prints how many rows it compared of each; fails with the first difference.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

from trainer.cli.count import count, hide_torch, preview
from trainer.cli.count_lines import lines_of
from trainer.data.dataset import conversations_of, cut_end, cut_front, prepare, tokenize_rows
from trainer.data.rows import parse_row, read_rows
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.protocol import SilentProtocol

# One that cuts no row, and one that cuts many.
LENGTHS = (4096, 40)
PREVIEWS = 4


def main() -> None:
    request = json.loads(sys.argv[1])
    hide_torch()
    from transformers import AutoTokenizer

    files = {objective: Path(file) for objective, file in request["files"].items()}
    rows = {objective: read_rows(file, sha256_of(file), objective) for objective, file in files.items()}
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"], local_files_only=True)
    for template in request["templates"]:
        tokenizer.chat_template = Path(template).read_text()
        for objective, file in files.items():
            for max_length in LENGTHS:
                compare(tokenizer, file, rows[objective], objective, max_length)
    print(json.dumps({objective: len(found) for objective, found in rows.items()}))


def compare(tokenizer, file: Path, rows: list, objective: str, max_length: int) -> None:
    preferences = objective != "sft"
    bound = None if preferences else max_length
    taken, numbers, refused, sequences = [], [], [], {}
    for number, row in enumerate(rows, start=1):
        parts = conversations_of(row)
        try:
            tokenized = tokenize_rows(parts, tokenizer, bound, [number] * len(parts))
            sequences[number] = [sequence for *_, found in tokenized for sequence in found]
        except JobError as problem:
            assert problem.data["line"] == row.line, (number, problem)
            refused.append(number)
            continue
        taken.append(row)
        numbers.append(number)
    counted = count(tokenizer, file, max_length, objective)
    longest = {number: max(len(each.ids) for each in found) for number, found in sequences.items()}
    cut = {number for number, length in longest.items() if length > max_length}
    empty = {number for number in cut if not (cut_front if preferences else cut_end)(sequences[number], max_length)}
    expected = {
        "rows": len(taken),
        "refused_rows": len(refused),
        "cut_rows": len(cut),
        "no_learned_rows": len(empty),
        "longest": max(longest.values(), default=0),
        "tokens": sum(len(each.ids) for found in sequences.values() for each in found),
    }
    for name, value in expected.items():
        assert counted.numbers[name] == value, (
            str(tokenizer.chat_template)[:60],
            max_length,
            name,
            counted.numbers,
            value,
        )
    assert [each["row"] for each in counted.listed["refused"]] == refused[:100]
    assert [each["row"] for each in counted.listed["no_learned"]] == sorted(empty)[:100]
    if len(empty) < len(taken):
        prepared = prepare(taken, tokenizer, max_length, SilentProtocol(), numbers)
        assert [row.number for row in prepared.rows] == [number for number in numbers if number not in empty]
        assert (prepared.truncated_rows, prepared.dropped_rows) == (len(cut), len(empty))
    for number in numbers[:: max(1, len(numbers) // PREVIEWS)]:
        shown = preview(tokenizer, file, number, max_length, objective)["sequences"]
        over = max(0, longest[number] - max_length) if preferences else 0
        pieces = [slice(over, over + max_length)] * len(shown)
        for piece, each, sequence in zip(pieces, shown, sequences[number], strict=True):
            assert [token["id"] for token in each["tokens"]] == sequence.ids[piece].tolist(), number
            assert [token["trained"] for token in each["tokens"]] == sequence.trained[piece].tolist(), number
    for number, _, line in list(lines_of(file))[:PREVIEWS]:
        assert conversations_of(parse_row(line, number, objective)) == conversations_of(rows[number - 1])


if __name__ == "__main__":
    main()
