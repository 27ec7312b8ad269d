"""One attempt at a fine-tuning job, as a process: `python -m trainer.cli.train RUN_FOLDER`.

Reads `RUN_FOLDER/spec.json` (trainer/runtime/spec.py), writes JSON lines on stdout (trainer/runtime/protocol.py) and
files into the folder:
`checkpoints/step-N/` and, at the end, `out/` with the result (trainer/export/convert.py). Exit status: 0 done, 1 failed
after an `error`
line, 74 the server is gone, 75 stopped by SIGTERM with a checkpoint behind it.
"""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.run.prepare import begin
from trainer.runtime.errors import JobError, without_places
from trainer.runtime.protocol import EXIT_FAILED, EXIT_STOPPED, Protocol, leave
from trainer.runtime.spec import Spec, read_spec


def torch_settings(threads: int) -> dict[str, str]:
    """The environment that torch reads when it is imported.

    A waiting thread spins briefly, then sleeps. By default it spins long, and so holds the core that the one it waits
    for needs as
    soon as anything else runs: measured beside one busy process on two cores, 91 tokens a second where the default
    finished no step
    in 45 s; alone, 240 instead of 254. A trainer is nearly always beside something: the engine.
    """
    # oneDNN keeps what it made for 1,024 shapes of products, and every batch has shapes of its own: 300 MB that are
    # never used again. Those of one step, which its layers share, are enough.
    cpu = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "2000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
    # A GPU's memory grows in place, so that changing lengths leave no pieces; workspaces of one size let cuBLAS add up
    # in one order.
    return {**cpu, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def settle(threads: int, four_bits: bool = False) -> None:
    """The process's surroundings, before anything reads them: no network, few words, and last in line for the cores."""
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
    )
    os.environ.update(TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", **torch_settings(threads))
    if not four_bits:
        # peft imports it wherever it finds it, which takes a second and 45 MB that only bases in four bits are worth.
        sys.modules["bitsandbytes"] = None
    with suppress(OSError, AttributeError):
        os.nice(19)
        # Linux alone has the idle class, in which not even the lowest priority's share of a busy core is left to the
        # trainer: the floor gives it its share.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def train(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    """Runs the job. False when it was asked to stop before its end."""
    loop, tokenizer, predicted = begin(spec, folder, protocol)
    # Imports torch, which `begin` has told the reader about by now.
    from trainer.run.save import finish
    from trainer.runtime.memory import peak_bytes

    if loop.resumed:
        protocol.emit(
            "status",
            f"Training goes on after step {loop.totals.step}",
            phase="training",
            resumed_from_step=loop.totals.step,
        )
    else:
        protocol.emit("status", "Training started", phase="training")
    protocol.steps_begin()
    if not loop.run():
        return False
    protocol.steps_end()
    if not loop.ranks.first:
        return True

    protocol.emit("status", "Converting the result", phase="converting")
    result = finish(loop, tokenizer, folder)
    where = {"step": loop.totals.step, "steps_total": loop.steps_total, "current_epoch": result["epochs"]}
    protocol.emit("progress", "100% done", **where, progress=1.0, seconds_left=0.0)
    message = f"Trained {loop.totals.step} steps; mean loss over the last epoch {loop.train_loss:.4f}"
    memory = {"peak_memory_mb": round(peak_bytes(loop.device) / 1e6), "predicted_memory_mb": round(predicted / 1e6)}
    protocol.emit("result", message, **result, **memory, predicted_seconds=loop.estimate.first_total)
    return True


def explain(problem: BaseException) -> JobError:
    """Any failure as one with a code. Memory's have many faces: Python's, CUDA's, and the CPU allocator's RuntimeError;
    a full disk's are Python's and those of the libraries that write."""
    if isinstance(problem, JobError):
        return problem
    text = str(problem).lower()
    if (
        isinstance(problem, MemoryError)
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
    ):
        advice = "Lower batch_size or max_length, or take a smaller base."
        return JobError("out_of_memory", f"The machine's memory is not enough for this run. {advice}")
    # Torch says of a write that failed no more than that it did.
    if any(
        words in text
        for words in ("no space left on device", "disk quota exceeded", "iostream error", "failed writing file")
    ):
        return JobError("storage_full", "The disk is full, or cannot be written.")
    return JobError("internal", f"The trainer failed: {type(problem).__name__}: {without_places(str(problem))}")


def main(run: Callable[[Spec, Path, Protocol], bool] = train) -> int:
    # Of several processes that train together the first one tells.
    protocol = Protocol(quiet=os.environ.get("RANK", "0") != "0")
    protocol.watch()
    try:
        folder = Path(sys.argv[1]).resolve()
        spec = read_spec(folder)
        settle(spec.threads, four_bits=spec.method == "qlora")
        return 0 if run(spec, folder, protocol) else EXIT_STOPPED
    except Exception as problem:
        traceback.print_exc()
        error = explain(problem)
        protocol.emit("error", str(error), code=error.code, **error.data)
        return EXIT_FAILED


if __name__ == "__main__":
    leave(main())
