"""Estimates a job's time and memory from a few of its own steps: `python -m trainer.cli.estimate RUN_FOLDER`, with a
job's `spec.json`.

The largest batch runs first: it warms up, and its memory is the run's peak. Then typical batches are timed for a
second. The `result` line has the numbers, for a machine without other work.
"""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainer.cli.train import run_job
from trainer.data.dataset import Row
from trainer.run.prepare import prepare_run
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

if TYPE_CHECKING:
    from trainer.run.loop import Loop

TIMED_STEPS, MOST_TIMED_STEPS, TIMED_SECONDS, TIMED_PICTURES = 2, 20, 1.0, 3


def estimate(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    """Emits the `result` line with seconds, tokens and bytes of the whole job. True: it was not stopped."""
    from trainer.run.memory import peak_bytes
    from trainer.run.progress import CLOSING_SECONDS

    started, started_cpu = time.monotonic(), time.process_time()
    loop, _, predicted = prepare_run(spec, folder, protocol)
    setup_seconds = time.monotonic() - started
    if loop.device.type == "cpu":
        setup_seconds = min(setup_seconds, time.process_time() - started_cpu)
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
    timed, tokens = time_steps(loop, batches)
    seconds_per_token = idle_seconds(timed, loop.device.type == "cpu") / tokens
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


def time_steps(loop: "Loop", batches: list[list[Row]]) -> tuple[list[tuple[float, float]], int]:
    """Seconds and processor time of steps, and the tokens that they had: each batch once, and again while that takes
    less than a second.
    """
    timed: list[tuple[float, float]] = []
    tokens, began = 0, time.monotonic()
    while len(timed) < len(batches) or (time.monotonic() - began < TIMED_SECONDS and len(timed) < MOST_TIMED_STEPS):
        batch = batches[len(timed) % len(batches)]
        started, started_cpu = time.monotonic(), time.process_time()
        loop.step(batch)
        timed.append((time.monotonic() - started, time.process_time() - started_cpu))
        tokens += sum(row.tokens for row in batch)
    return timed, tokens


def idle_seconds(timed: list[tuple[float, float]], on_cpu: bool) -> float:
    """The seconds of these steps with nothing else on the machine. A step needs about the same processor time however
    busy the machine is, and the one that kept most cores busy was disturbed least.
    """
    if not on_cpu:
        return sum(seconds for seconds, _ in timed)
    cores = max(cpu_seconds / seconds for seconds, cpu_seconds in timed)
    return sum(cpu_seconds for _, cpu_seconds in timed) / cores


def picture_seconds(loop: "Loop") -> float:
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


def vectors_of(rows: Iterable["Row"]) -> np.ndarray:
    """The numbers of the vectors that these rows show, int32 [vectors], in order and with repetitions."""
    shown = [sequence.vectors for row in rows for sequence in row.sequences if sequence.vectors is not None]
    numbers = np.concatenate(shown) if shown else np.empty(0, dtype=np.int32)
    return numbers[numbers >= 0]


if __name__ == "__main__":
    run_job(estimate)
