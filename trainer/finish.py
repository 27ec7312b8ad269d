"""After the last step: the best weights put back, everything that is kept converted, the rows listed by their loss."""

import json
import math
from pathlib import Path

from trainer import snapshots
from trainer.convert import Artifact, save
from trainer.loop import Loop

# More strange rows than anyone reads; the file of a million rows would take seconds to write.
MOST_ROWS = 1000


def finish(loop: Loop, tokenizer, folder: Path) -> dict:
    """Writes `out/` and returns what the `result` line tells."""
    spec, totals, validation, out = loop.spec, loop.totals, loop.validation, folder / "out"
    best = validation.finish(loop.parameters)
    made = save(loop.model, tokenizer, spec, out / "result")
    kept = []
    for snapshot in validation.kept:
        if snapshot.step != (best.step if best else totals.step) and snapshots.restore(snapshot, loop.parameters):
            artifact = save(loop.model, tokenizer, spec, out / f"step-{snapshot.step}")
            kept.append(_told(artifact, snapshot.step, snapshot.loss))
    return {
        **_told(made, best.step if best else totals.step, best.loss if best else None),
        "validation_exact": best.exact if best else None,
        "kept": kept,
        "rows": str(write_rows(loop, out / "rows.jsonl")),
        "epochs": math.ceil(totals.step / loop.steps_an_epoch),
        "steps_total": loop.steps_total,
        "train_loss": loop.train_loss,
        "trained_tokens": totals.tokens,
        "train_seconds": round(totals.seconds, 3),
        "tokens_per_second": round(totals.tokens / totals.seconds, 1),
        "steps": totals.step,
    }


def _told(artifact: Artifact, step: int, loss: float | None) -> dict:
    where = {"kind": artifact.kind, "folder": str(artifact.folder), "gguf": str(artifact.gguf), "gguf_sha256": artifact.gguf_sha256}
    return {**where, "step": step, "validation_loss": loss}


def write_rows(loop: Loop, path: Path) -> Path:
    """Each row's mean loss when it was first and last trained on, the strangest first."""
    rows = [
        {"row": row.number, "loss": last, "first_loss": first, "tokens": row.targets}
        for row, (first, last) in zip(loop.data.rows, loop.state.row_losses.tolist(), strict=True)
        if not math.isnan(last)
    ]
    rows.sort(key=lambda row: -row["loss"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:MOST_ROWS]))
    return path
