"""Runs one attempt at a fine-tuning job: `python -m trainer.cli.train RUN_FOLDER`.

Reads `RUN_FOLDER/spec.json` (trainer/runtime/spec.py), writes JSON lines on stdout (trainer/runtime/protocol.py) and
files into the folder: `checkpoints/step-N/` and, at the end, `out/` with the result (trainer/export/convert.py). Exit
status: 0 done, 1 failed after an `error` line, 74 the server is gone, 75 stopped by SIGTERM after a checkpoint.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from trainer.run.prepare import prepare_run
from trainer.runtime.protocol import EXIT_STOPPED, Protocol, run_program
from trainer.runtime.spec import ModelSpec, Spec, read_spec

SpecType = TypeVar("SpecType", bound=ModelSpec)


def torch_settings(threads: int) -> dict[str, str]:
    """The environment variables that torch reads on import.

    A waiting thread spins briefly, then sleeps. By default it spins long and blocks the core that the thread it waits
    for needs when other work runs. Measured on two cores with one other busy process: 91 tokens a second, while the
    default finished no step in 45 s; alone, 240 instead of 254. The engine nearly always runs next to the trainer.
    """
    # oneDNN caches primitives of 1,024 matrix shapes, but every batch has new shapes: 300 MB that are never reused. One
    # step's shapes, shared by its layers, are enough.
    cpu = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "2000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
    # Expandable segments keep batches of changing lengths from fragmenting GPU memory. A fixed workspace makes cuBLAS
    # sum in a fixed order.
    return {**cpu, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def lower_priority(priority: str) -> None:
    """Lets serving and other programs go first. `priority`: "idle", "low" (the lowest nice level) or "normal"."""
    with suppress(OSError, AttributeError):
        if priority != "normal":
            os.nice(19)
        # Only Linux has the idle class, which leaves the trainer no share of a busy core; the service guarantees it one
        # (TUNERY_TRAINING_SHARE).
        if priority == "idle":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def configure_process(threads: int, quantized: bool = False) -> None:
    """Sets up the process before anything reads its environment: no network, few log messages, lowest CPU priority."""
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
    )
    os.environ.update(TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", **torch_settings(threads))
    if not quantized:
        # peft imports bitsandbytes if it is installed: a second and 45 MB that only quantized bases need.
        sys.modules["bitsandbytes"] = None
    lower_priority(os.environ.get("TUNERY_TRAINING_PRIORITY", "idle"))


def train(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    """Runs the job. False if a stop was requested before its end."""
    loop, tokenizer, predicted = prepare_run(spec, folder, protocol)
    # These import torch, which `prepare_run` has reported by now.
    from trainer.run.save import save_result
    from trainer.runtime.memory import peak_bytes

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
    if not loop.run():
        return False
    protocol.steps_end()
    if not loop.distributed.is_first:
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
