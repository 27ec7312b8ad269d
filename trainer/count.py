"""What a dataset is in tokens, for a base: `python -m trainer.count REQUEST`, where REQUEST is JSON. Prints one JSON object.

{"hf", "rows", "max_length"}: counts every row of the file `rows`, as the trainer will see it. With "row": the tokens of that row alone,
and which of them the loss counts.
"""

import importlib.util
import json
import os
import sys
from itertools import islice
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="true")

# The upper ends of the histogram's bars, in tokens.
BARS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
AT_ONCE = 1024
MOST_LISTED = 100


def rows_of(path: Path):
    """Each row's messages, read line by line."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
            if text.strip(b" \t\r\n"):
                yield json.loads(text)["messages"]


def count(tokenizer, path: Path, max_length: int) -> dict:
    from trainer.mask import render

    bars = [0] * (len(BARS) + 1)
    rows = tokens = longest = cut_rows = cut_tokens = 0
    cut = []
    left = rows_of(path)
    while some := list(islice(left, AT_ONCE)):
        texts = [render(messages, tokenizer) for messages in some]
        for encoded in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            length = len(encoded)
            rows, tokens, longest = rows + 1, tokens + length, max(longest, length)
            bars[next((index for index, bar in enumerate(BARS) if length <= bar), len(BARS))] += 1
            if length > max_length:
                cut_rows, cut_tokens = cut_rows + 1, cut_tokens + length - max_length
                if len(cut) < MOST_LISTED:
                    cut.append({"row": rows, "tokens": length, "cut_tokens": length - max_length})
    histogram = [{"up_to": bar, "rows": number} for bar, number in zip([*BARS, None], bars, strict=True) if number]
    found = {"rows": rows, "tokens": tokens, "longest": longest, "cut_rows": cut_rows, "cut_tokens": cut_tokens}
    return {**found, "max_length": max_length, "histogram": histogram, "cut": cut}


def preview(tokenizer, path: Path, row: int, max_length: int) -> dict:
    from trainer.data import prepare
    from trainer.protocol import Silent

    messages = next((messages for number, messages in enumerate(rows_of(path), start=1) if number == row), None)
    if messages is None:
        return {"missing": True}
    [prepared] = prepare([messages], tokenizer, sys.maxsize, Silent()).rows
    sequences = []
    for sequence in prepared.sequences:
        pieces = zip(sequence.ids.tolist(), sequence.trained.tolist(), strict=True)
        tokens = [{"id": id, "text": tokenizer.decode([id]), "trained": trained} for id, trained in pieces]
        sequences.append({"tokens": tokens[:max_length], "cut_tokens": max(0, len(tokens) - max_length)})
    return {"messages": messages, "sequences": sequences}


def without_torch() -> None:
    """Lets transformers believe that there is no torch: tokenizers need none, and importing it takes three seconds."""
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)


def main() -> None:
    without_torch()
    from transformers import AutoTokenizer

    request = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(request["hf"], local_files_only=True, trust_remote_code=False)
    path = Path(request["rows"])
    if "row" in request:
        found = preview(tokenizer, path, request["row"], request["max_length"])
    else:
        found = count(tokenizer, path, request["max_length"])
    print(json.dumps(found))


if __name__ == "__main__":
    from trainer.errors import JobError

    try:
        main()
    except JobError as problem:
        print(json.dumps({"problem": str(problem)}))
