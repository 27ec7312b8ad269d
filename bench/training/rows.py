"""Rows with a realistic distribution of lengths: the documentation of public functions, requested by name. Also the
same text in full-length rows.

The text comes from the installed packages and Python, so rows differ a little between Python versions; the bench prints
their lengths.
"""

import importlib
import inspect
import json
import random
from pathlib import Path

MODULES = """
argparse asyncio.tasks base64 bisect calendar collections csv datetime decimal difflib email.message enum fractions
functools
gzip heapq hashlib http.client imaplib inspect io ipaddress itertools json logging math mailbox mimetypes operator os
pathlib pickle platform random re sched secrets shelve shlex shutil smtplib socket sqlite3 statistics string struct
subprocess tarfile tempfile textwrap threading timeit tokenize traceback types urllib.parse uuid wave zipfile zlib
torch torch.nn.functional torch.linalg torch.optim torch.nn numpy numpy.linalg numpy.fft numpy.random
"""


def documented() -> list[tuple[str, str]]:
    """Sorted (name, documentation) of every public function, class and method of the modules."""
    found = {}
    for module_name in MODULES.split():
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
                continue
            found.setdefault(inspect.getdoc(value), f"{module_name}.{name}")
            if inspect.isclass(value):
                for part, method in sorted(vars(value).items()):
                    if not part.startswith("_") and inspect.isroutine(method):
                        found.setdefault(inspect.getdoc(method), f"{module_name}.{name}.{part}")
    return sorted((name, text) for text, name in found.items() if text and len(text) > 20)


def conversation(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def mixed_rows(count: int | None, seed: int) -> list[dict]:
    """One documentation text in a row, at its own length; the trainers cut it at the bench's limit. `None` is all."""
    rows = [conversation(f"What does {name} do?", text) for name, text in documented()]
    return random.Random(seed).sample(rows, len(rows) if count is None else count)


def full_rows(count: int, seed: int) -> list[dict]:
    """Rows that all reach the length limit: many documentation texts in sequence."""
    texts = [f"{name}: {text}" for name, text in documented()]
    random.Random(seed).shuffle(texts)
    return [
        conversation("Recite the manual.", "\n\n".join(texts[index * 40 : index * 40 + 40])[:8000])
        for index in range(count)
    ]


def pairs(count: int, seed: int) -> list[dict]:
    """A question, the documentation that answers it, and that of another function; at most 400 characters each."""
    drawn = mixed_rows(2 * count, seed)
    return [
        {
            "prompt": row["messages"][0]["content"],
            "chosen": row["messages"][1]["content"][:400],
            "rejected": other["messages"][1]["content"][:400],
        }
        for row, other in zip(drawn[:count], drawn[count:], strict=True)
    ]


def rated(count: int, seed: int) -> list[dict]:
    """One answer of each pair, good and bad in turn."""
    return [
        {"prompt": row["prompt"], "completion": row["rejected" if index % 2 else "chosen"], "label": index % 2 == 0}
        for index, row in enumerate(pairs(count, seed))
    ]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def canonical_file(path: Path) -> Path:
    """The rows of a file as the service writes them for its trainer."""
    with path.open() as file:
        rows = [canonical(json.loads(line)) for line in file]
    return write(path.with_suffix(".canonical.jsonl"), rows)


def canonical(row: dict) -> dict:
    if "prompt" not in row:
        return row
    asked = [{"role": "user", "content": row["prompt"]}]
    answers = {name: {"role": "assistant", "content": row[name]} for name in row if name not in ("prompt", "label")}
    if "completion" in answers:
        return {"messages": [*asked, answers["completion"]], "label": row["label"]}
    return {"prompt": asked, **answers}
