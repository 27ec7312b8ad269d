"""Cached reference answers and whether they are still valid, read without importing torch."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trainer.data.questions import QUESTIONS
from trainer.export.answer_file import read
from trainer.export.spec import Export
from trainer.runtime.errors import JobError

MOST_PROMPTS = 4


def cached_answers(spec: Export) -> dict[str, Any] | None:
    """The cached answers if they are for the same prompts, and from today if the template writes the date."""
    cached = read(Path(spec.reference))
    if (
        not cached
        or cached.get("day") not in (None, today())
        or [row["messages"] for row in cached["rows"]] != prompts_of(spec)
    ):
        return None
    return cached if cached["parse_control_tokens"] == spec.parse_control_tokens else None


def has_importance(spec: Export) -> bool:
    """Whether an intact importance matrix exists, or none is needed."""
    if not spec.importance:
        return True
    try:
        with safe_open(spec.importance, framework="numpy") as file:
            return len(file.keys()) > 0
    except (OSError, SafetensorError):
        return False


def today() -> str:
    """The date of this machine, as cached answers have it."""
    return date.today().isoformat()


def prompts_of(spec: Export) -> list[list[dict[str, Any]]]:
    """Prompts of held-out rows if the training had any; general questions for a model without rows. Raises
    JobError("internal") if the file of rows cannot be read.
    """
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


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a model's probe.json."""
    return json.loads(Path(path).read_text())["rows"]
