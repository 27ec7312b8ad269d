"""What the trainer has said of a model, and whether that still holds: found without the libraries that it takes to say
it anew.
"""

import json
from datetime import date
from pathlib import Path

from safetensors import SafetensorError, safe_open

from trainer.cli.import_adapter import QUESTIONS
from trainer.export.answer_file import read
from trainer.export.spec import Export
from trainer.runtime.errors import JobError

MOST_PROMPTS = 4


def kept_answers(spec: Export) -> dict | None:
    """The answers in the model's folder, to the same prompts, which a template may have made with the date of another
    day.
    """
    found = read(Path(spec.reference))
    if (
        not found
        or found.get("day") not in (None, today())
        or [row["messages"] for row in found["rows"]] != prompts_of(spec)
    ):
        return None
    # Files of before there was the choice are of the one way that there was.
    return found if found.get("parse_control_tokens", True) == spec.parse_control_tokens else None


def is_measured(spec: Export) -> bool:
    """Whether there is what quantizing goes by, whole, where it goes by anything."""
    if not spec.importance:
        return True
    try:
        with safe_open(spec.importance, framework="numpy") as file:
            return len(file.keys()) > 0
    except (OSError, SafetensorError):
        return False


def today() -> str:
    return date.today().isoformat()


def prompts_of(spec: Export) -> list[list[dict]]:
    """Of rows that were not learned, where the training held any out; questions to anything, where it left no rows."""
    rows = []
    if spec.probe and Path(spec.probe).exists():
        try:
            rows = [
                [{name: message[name] for name in ("role", "content")} for message in row["prompt"]]
                for row in read_rows(spec.probe)
            ]
        except (ValueError, KeyError, TypeError) as problem:
            raise JobError("internal", f"The model's probe.json cannot be read: {problem!r}.") from problem
    return rows[:MOST_PROMPTS] or [[{"role": "user", "content": question}] for question in QUESTIONS][:MOST_PROMPTS]


def read_rows(path: str) -> list[dict]:
    return json.loads(Path(path).read_text())["rows"]
