"""What a job would take, by a few of its own steps: `python -m trainer.cli.estimate RUN_FOLDER`, with the `spec.json`
of a job.

The largest batch runs first: it warms up, and its memory is the run's. Two typical ones are timed. The `result` line
tells it all.
"""

import time
from pathlib import Path

from trainer.cli.train import main
from trainer.run.prepare import begin
from trainer.runtime.protocol import Protocol, leave
from trainer.runtime.spec import Spec

TIMED_STEPS = 2


def calibrate(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    from trainer.run.progress import CLOSING_SECONDS
    from trainer.runtime.memory import peak_bytes

    started = time.monotonic()
    loop, _, predicted = begin(spec, folder, protocol)
    beginning = time.monotonic() - started
    size = spec.training.batch_size
    loop.step(sorted(loop.data.rows, key=lambda row: -row.tokens)[:size])
    batches = [loop.batch(index % loop.steps_an_epoch) for index in range(TIMED_STEPS)]
    if loop.recorded:
        # A size is recorded when it is first met, which in a run is soon over.
        for batch in batches:
            loop.step(batch)
    started = time.monotonic()
    for batch in batches:
        loop.step(batch)
    seconds_a_token = (time.monotonic() - started) / sum(row.tokens for batch in batches for row in batch)
    whole = loop.data.tokens * spec.training.epochs
    protocol.emit(
        "result",
        "Calibrated",
        tokens=whole,
        steps=loop.steps_total,
        rows=len(loop.data.rows),
        cut_rows=loop.data.truncated_rows,
        no_learned_rows=loop.data.dropped_rows,
        seconds=round(beginning + whole * seconds_a_token + CLOSING_SECONDS, 1),
        tokens_per_second=round(1 / seconds_a_token, 1),
        peak_memory_mb=round(peak_bytes(loop.device) / 1e6),
        predicted_memory_mb=round(predicted / 1e6),
    )
    return True


if __name__ == "__main__":
    leave(main(calibrate))
