"""Saves the results after the last step: restores the best weights, converts every kept state, lists rows by their
loss, and writes the answers to draft from.
"""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from trainer.data.dataset import Example
from trainer.data.questions import general_examples
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_identity import identity_of
from trainer.model.load import load_model, zero_adapter
from trainer.run import probe, snapshots
from trainer.run.artifact import convert, write_folder
from trainer.run.draft_file import write_drafts
from trainer.run.loop import Loop
from trainer.run.memory import trim_heap
from trainer.run.snapshots import Snapshot
from trainer.runtime.files import sha256_of

# More rows with a high loss than anyone reads; a file of a million rows would take seconds to write.
MOST_ROWS = 1000


def save_result(loop: Loop, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Writes `out/` and returns the data of the `result` line. The loop cannot be used afterwards."""
    totals, validation, out = loop.totals, loop.validation, folder / "out"
    best = validation.restore_best(loop.parameters)
    examples = _examples(loop, tokenizer)
    step, loss = (best.step, best.loss) if best else (totals.step, None)
    results, tuned, converting = [], [], []
    # The converter runs in the memory of the optimizer's moments.
    loop.optimizer.state.clear()
    trim_heap(0, loop.device)

    def save_state(folder: Path, step: int, loss: float | None) -> None:
        # The converter replaces modules that a projector's file needs, too.
        wait(converting)
        write_folder(loop.model, tokenizer, loop.spec, folder)
        converting.append(converter.submit(convert, tokenizer, loop.spec, folder))
        tuned.append(probe.log_probabilities(loop.model, examples, loop.device))
        results.append({"step": step, "validation_loss": loss})

    # The converter reads files and keeps one core busy, while the model is scored.
    with ThreadPoolExecutor(1) as converter:
        save_state(out / "result", step, loss)
        for snapshot in _others(loop, step):
            save_state(out / f"step-{snapshot.step}", snapshot.step, snapshot.loss)
        drafts = converter.submit(_drafts, loop, out / "drafts.bin")
        base = _base_log_probabilities(loop, examples)
        loop.distributed.part()
    for result, converted, scores in zip(results, converting, tuned, strict=True):
        artifact = converted.result()
        path = probe.write(artifact.gguf.parent / "probe.json", examples, scores, base)
        result |= {**artifact.as_data(), "probe": str(path)}
    return {
        **results[0],
        "validation_exact": best.exact if best else None,
        "kept": results[1:],
        "trained_with": {
            **loop.data.common.as_data(tokenizer),
            "chat_template_sha256": identity_of(tokenizer, Path(loop.spec.base.path)).chat_template_sha256,
        },
        "rows": str(write_rows(loop, out / "rows.jsonl")),
        **drafts.result(),
        "epochs": math.ceil(totals.step / loop.steps_per_epoch),
        "steps_total": loop.steps_total,
        "train_loss": loop.train_loss if best is None or best.train_loss is None else best.train_loss,
        "trained_tokens": totals.tokens,
        "train_seconds": round(totals.seconds, 3),
        "tokens_per_second": round(totals.tokens / totals.seconds, 1),
        "steps": totals.step,
    }


def accompany_result(loop: Loop, tokenizer: Tokenizer) -> None:
    """Computes what `save_result` of the first process does, of whose weights this one has a part."""
    best = loop.validation.restore_best(loop.parameters)
    examples = _examples(loop, tokenizer)
    loop.optimizer.state.clear()
    probe.log_probabilities(loop.model, examples, loop.device)
    for _ in _others(loop, best.step if best else loop.totals.step):
        probe.log_probabilities(loop.model, examples, loop.device)
    _base_log_probabilities(loop, examples)
    loop.distributed.part()


def _others(loop: Loop, step: int) -> Iterator[Snapshot]:
    """The kept states but that of `step`, each restored."""
    for snapshot in loop.validation.recent:
        if snapshot.step != step and snapshots.restore(snapshot, loop.parameters):
            yield snapshot


def _examples(loop: Loop, tokenizer: Tokenizer) -> list[Example]:
    """From the held-out rows if there are any; general questions if the pictures of all rows are too large for a
    check.
    """
    examples = [example for example in (loop.validation.rows or loop.data).examples if probe.is_sendable(example)]
    if examples or not loop.features:
        return examples
    return general_examples(tokenizer, loop.model.config.get_text_config().max_position_embeddings)


def _base_log_probabilities(loop: Loop, examples: list[Example]) -> list[list[float]]:
    """The log-probabilities without the training: of the weights below the adapter, or of the model that full training
    started from.
    """
    if loop.spec.method != "full":
        zero_adapter(loop.model)
        return probe.log_probabilities(loop.model, examples, loop.device)
    origin = load_model(loop.spec, loop.device, torch.float32)
    # Training leaves the part that sees as it is, but for a projector that is computed in each pass.
    origin.features = loop.features
    return probe.log_probabilities(origin, examples, loop.device)


def _drafts(loop: Loop, path: Path) -> dict[str, str | None]:
    vocab_size = loop.model.config.get_text_config().vocab_size
    written = write_drafts(loop.data.rows, loop.spec.options.objective, vocab_size, path)
    return {"drafts": written and str(written), "drafts_sha256": written and sha256_of(written)}


def write_rows(loop: Loop, path: Path) -> Path:
    """Writes each row's mean loss when it was first and last trained on, highest loss first."""
    rows = [
        {"row": row.number, "loss": last, "first_loss": first, "tokens": row.targets}
        for row, (first, last) in zip(loop.data.rows, loop.state.row_losses.tolist(), strict=True)
        if not math.isnan(last)
    ]
    rows.sort(key=lambda row: -row["loss"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:MOST_ROWS]))
    return path
