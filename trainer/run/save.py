"""After the last step: the best weights put back, everything that is kept converted, the rows listed by their loss."""

import json
import math
from pathlib import Path

import torch

from trainer.data.dataset import Example
from trainer.export.convert import save
from trainer.model.load import load_model, without_adapter
from trainer.run import probe, snapshots
from trainer.run.loop import Loop

# More strange rows than anyone reads; the file of a million rows would take seconds to write.
MOST_ROWS = 1000


def finish(loop: Loop, tokenizer, folder: Path) -> dict:
    """Writes `out/` and returns what the `result` line tells."""
    totals, validation, out = loop.totals, loop.validation, folder / "out"
    best = validation.finish(loop.parameters)
    results = [_saved(loop, tokenizer, out / "result", best.step if best else totals.step, best.loss if best else None)]
    for snapshot in validation.kept:
        if snapshot.step != results[0]["step"] and snapshots.restore(snapshot, loop.parameters):
            results.append(_saved(loop, tokenizer, out / f"step-{snapshot.step}", snapshot.step, snapshot.loss))
    origin = _origin(loop)
    for result in results:
        path = Path(result["folder"]).parent / "probe.json"
        result["probe"] = str(probe.write(path, _examples(loop), result.pop("tuned"), origin))
    return {
        **results[0],
        "validation_exact": best.exact if best else None,
        "kept": results[1:],
        "rows": str(write_rows(loop, out / "rows.jsonl")),
        "epochs": math.ceil(totals.step / loop.steps_an_epoch),
        "steps_total": loop.steps_total,
        "train_loss": loop.train_loss if best is None or best.train_loss is None else best.train_loss,
        "trained_tokens": totals.tokens,
        "train_seconds": round(totals.seconds, 3),
        "tokens_per_second": round(totals.tokens / totals.seconds, 1),
        "steps": totals.step,
    }


def _examples(loop: Loop) -> list[Example]:
    """Of the held-out rows, where there are any."""
    return (loop.validation.rows or loop.data).examples


def _saved(loop: Loop, tokenizer, out: Path, step: int, loss: float | None) -> dict:
    made = save(loop.model, tokenizer, loop.spec, out)
    tuned = probe.log_probabilities(loop.model, _examples(loop), loop.device)
    where = {"kind": made.kind, "folder": str(made.folder), "gguf": str(made.gguf), "gguf_sha256": made.gguf_sha256}
    return {**where, "step": step, "validation_loss": loss, "tuned": tuned}


def _origin(loop: Loop) -> list[list[float]]:
    """The log-probabilities of the whole weights that an adapter stands on, or of what a whole model was made from.
    Ends the loop's use.
    """
    if loop.spec.method != "full":
        without_adapter(loop.model)
        return probe.log_probabilities(loop.model, _examples(loop), loop.device)
    loop.optimizer.state.clear()
    return probe.log_probabilities(load_model(loop.spec, loop.device, torch.float32), _examples(loop), loop.device)


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
