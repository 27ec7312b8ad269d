"""The file that holds a model's answers."""

import json
import math
from pathlib import Path

from trainer.runtime.errors import JobError
from trainer.runtime.files import placed

VERSION = 1


def read(path: Path) -> dict | None:
    """The answers in a file; null where there is none, or one of another version."""
    try:
        found = json.loads(path.read_text())
        return found if found["version"] == VERSION and found["rows"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, rows: list[dict], **more: object) -> None:
    """The whole file or none: what a killed process leaves is never read as answers."""
    for row in rows:
        if not all(math.isfinite(value) for value in row["log_probabilities"]):
            raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite).")
    with placed(path) as aside:
        aside.write_text(json.dumps({"version": VERSION, **more, "rows": rows}, allow_nan=False))
