"""The file with a model's reference answers."""

import json
import math
from pathlib import Path
from typing import Any

from trainer.runtime.errors import JobError
from trainer.runtime.files import atomic_write

VERSION = 2


def read(path: Path) -> dict[str, Any] | None:
    """The file's answers; null if there is no file or it has another version."""
    try:
        answers = json.loads(path.read_text())
        return answers if answers["version"] == VERSION and answers["rows"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, rows: list[dict[str, Any]], **more: object) -> None:
    """Writes atomically: a killed process leaves no partial answers. Raises JobError("adapter_invalid") if a
    log-probability is not finite.
    """
    for row in rows:
        if not all(math.isfinite(value) for value in row["log_probabilities"]):
            raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite).")
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({"version": VERSION, **more, "rows": rows}, allow_nan=False))
