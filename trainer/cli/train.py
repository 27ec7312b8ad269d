"""Runs one attempt at a fine-tuning job: `python -m trainer.cli.train RUN_FOLDER`.

Reads `RUN_FOLDER/spec.json` (trainer/runtime/spec.py), writes JSON lines on stdout (trainer/runtime/protocol.py) and
files into the folder: `checkpoints/step-N/` and, at the end, `out/` with the result (trainer/run/artifact.py). Exit
status: 0 done, 1 failed after an `error` line, 74 the server is gone, 75 stopped by SIGTERM after a checkpoint.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from trainer.run.prepare import prepare_run
from trainer.runtime.process import configure_process
from trainer.runtime.protocol import EXIT_STOPPED, Protocol, run_program
from trainer.runtime.spec import ModelSpec, Spec, read_spec

SpecType = TypeVar("SpecType", bound=ModelSpec)


def train(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    """Runs the job. False if a stop was requested before its end."""
    loop, tokenizer, predicted = prepare_run(spec, folder, protocol)
    # These import torch, which `prepare_run` has reported by now.
    from trainer.run.memory import keep_heap, peak_bytes
    from trainer.run.save import accompany_result, save_result

    keep_heap(loop.device)
    if loop.resumed:
        protocol.emit(
            "status",
            f"Training resumes after step {loop.totals.step}",
            phase="training",
            resumed_from_step=loop.totals.step,
        )
    else:
        protocol.emit("status", "Training started", phase="training")
    protocol.steps_begin()
    together = loop.distributed
    finished = loop.run()
    if not (finished and together.sharded):
        together.part()
    if not finished:
        return False
    protocol.steps_end()
    if together.sharded and not together.is_first:
        accompany_result(loop, tokenizer)
    if not together.is_first:
        return True

    protocol.emit("status", "Converting the result", phase="converting")
    result = save_result(loop, tokenizer, folder)
    position = {"step": loop.totals.step, "steps_total": loop.steps_total, "current_epoch": result["epochs"]}
    protocol.emit("progress", "100% done", **position, progress=1.0, seconds_left=0.0)
    message = f"Trained {loop.totals.step} steps; mean loss over the last epoch {loop.train_loss:.4f}"
    memory = {"peak_memory_mb": round(peak_bytes(loop.device) / 1e6), "predicted_memory_mb": round(predicted / 1e6)}
    protocol.emit("result", message, **result, **memory, predicted_seconds=loop.estimate.first_total)
    return True


def run_job(run: Callable[[SpecType, Path, Protocol], bool], read: Callable[[Path], SpecType] = read_spec) -> NoReturn:
    """Runs a program on the run folder that the command line names, to its exit status. `run` returns False if it was
    stopped.
    """

    def main(protocol: Protocol) -> int:
        folder = Path(sys.argv[1]).resolve()
        spec = read(folder)
        configure_process(spec.threads, quantized=spec.method == "qlora")
        return 0 if run(spec, folder, protocol) else EXIT_STOPPED

    # Only rank 0 of a distributed run reports.
    run_program(main, quiet=os.environ.get("RANK", "0") != "0")


if __name__ == "__main__":
    run_job(train)
