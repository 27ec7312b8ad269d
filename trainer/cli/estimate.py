"""Estimates a job's time and memory from a few of its own steps: `python -m trainer.cli.estimate RUN_FOLDER`, with a
job's `spec.json`.

The largest batch runs first: it warms up, and its memory is the run's peak. Then two typical batches are timed. The
`result` line has the numbers.
"""

import math
import time
from pathlib import Path

import numpy as np

from trainer.cli.train import run_job
from trainer.run.prepare import prepare_run
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

TIMED_STEPS, TIMED_PICTURES = 2, 3


def estimate(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    from trainer.run.memory import peak_bytes
    from trainer.run.progress import CLOSING_SECONDS

    started = time.monotonic()
    loop, _, predicted = prepare_run(spec, folder, protocol)
    setup_seconds = time.monotonic() - started
    setup_seconds += picture_seconds(loop)
    size = spec.training.batch_size
    longest = sorted(loop.data.rows, key=lambda row: -row.tokens)[:size]
    loop.reference_of(longest)
    loop.step(longest)
    steps = [index % loop.steps_per_epoch for index in range(TIMED_STEPS)]
    batches = [loop.batch(step) for step in steps]
    # Preferences are scored once before the first step.
    scored = [row for step in set(steps) for row in loop.batch(step)]
    loop.objective.reference.fill_(math.nan)
    started = time.monotonic()
    loop.reference_of(scored)
    setup_seconds += (time.monotonic() - started) / sum(row.tokens for row in scored) * loop.data.tokens
    if loop.cuda_graphs:
        # The first batch of each size captures its CUDA graph, which a long run does only at the start.
        for batch in batches:
            loop.step(batch)
    if loop.features:
        loop.features.require(vectors_of(row for batch in batches for row in batch))
    started = time.monotonic()
    for batch in batches:
        loop.step(batch)
    seconds_per_token = (time.monotonic() - started) / sum(row.tokens for batch in batches for row in batch)
    total_tokens = loop.data.tokens * spec.training.epochs
    protocol.emit(
        "result",
        "Estimated",
        tokens=total_tokens,
        steps=loop.steps_total,
        rows=len(loop.data.rows),
        cut_rows=loop.data.truncated_rows,
        no_learned_rows=loop.data.dropped_rows,
        seconds=round(setup_seconds + total_tokens * seconds_per_token + CLOSING_SECONDS, 1),
        tokens_per_second=round(1 / seconds_per_token, 1),
        peak_memory_mb=round(peak_bytes(loop.device) / 1e6),
        predicted_memory_mb=round(predicted / 1e6),
    )
    return True


def picture_seconds(loop) -> float:
    """The seconds in which a run's pictures are encoded, before its first step; from a few of them."""
    if not loop.features:
        return 0.0
    features = loop.features
    # The first one also warms up.
    features.encode(0)
    timed = features.missing[:TIMED_PICTURES] or [0]
    counts = [features.sight.shown(features.pictures[index]).vectors for index in timed]
    features.done[timed] = 0
    started = time.monotonic()
    for index in timed:
        features.encode(index)
    return (time.monotonic() - started) / sum(counts) * features.sight.vectors


def vectors_of(rows) -> np.ndarray:
    """The numbers of the vectors that these rows show."""
    shown = [each.vectors for row in rows for each in row.sequences if each.vectors is not None]
    numbers = np.concatenate(shown) if shown else np.empty(0, dtype=np.int32)
    return numbers[numbers >= 0]


if __name__ == "__main__":
    run_job(estimate)
