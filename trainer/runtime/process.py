"""Settings of a process that computes with torch: environment, threads and priority."""

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from trainer.runtime.import_scan import cache_import_scan
from trainer.runtime.lean_imports import leave_out_compiler, leave_out_distributed_tensors
from trainer.runtime.postponed import load_meta_kernels_on_demand, postpone_modules


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


# Gets about a sixth of a core that another program keeps busy (docs/decisions/045-priority-of-trainings.md).
LOW_NICENESS = 7


def lower_priority(priority: str) -> None:
    """Lets serving and other programs go first. `priority`: "idle" (they leave nothing of a core that they keep busy),
    "low" or "normal".
    """
    with suppress(OSError, AttributeError):
        if priority == "low":
            os.nice(LOW_NICENESS)
        if priority == "idle":
            os.nice(19)
            # Only Linux has the idle class.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def configure_process(threads: int, quantized: bool = False) -> None:
    """Sets up the process before anything reads its environment: no network, few log messages, low CPU priority."""
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
    )
    os.environ.update(TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", **torch_settings(threads))
    if not quantized:
        leave_out_quantized_layers()
    lower_priority(os.environ.get("TUNERY_TRAINING_PRIORITY", "low"))


def leave_out_quantized_layers() -> None:
    """peft imports bitsandbytes if it is installed: a second and 45 MB that only quantized bases need."""
    sys.modules["bitsandbytes"] = None  # pyright: ignore[reportArgumentType]


@contextmanager
def importing() -> Generator[None]:
    """For imports of torch and what builds on it. Their objects live as long as the process: the garbage collector need
    not look through them, neither while they are made, which takes a fifth of the time, nor later.
    """
    cache_import_scan()
    leave_out_compiler()
    postpone_modules()
    gc.disable()
    try:
        yield
    finally:
        leave_out_distributed_tensors()
        load_meta_kernels_on_demand()
        gc.freeze()
        gc.enable()
