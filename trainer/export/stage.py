"""One stage of an export: `python -m trainer.export.stage NAME FOLDER`, a process of its own, so that the next has all
the memory.

The last line is a `result` with what the stage tells the whole.
"""

import resource
import shutil
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from trainer.cli.train import explain, settle
from trainer.export.spec import Export, read_spec
from trainer.runtime.errors import JobError
from trainer.runtime.files import sync_tree
from trainer.runtime.protocol import EXIT_FAILED, Protocol, leave

ANSWERS = "answers.json"


def reference(spec: Export, _folder: Path, tell) -> dict:
    from trainer.export.reference import reference

    reference(spec, lambda done: tell("reference", done))
    return {"reference": spec.reference}


def make(spec: Export, folder: Path, tell) -> dict:
    from trainer.export.make import make

    made = make(spec, folder, tell)
    return {"out": str(made)} if made else {}


def finish(spec: Export, folder: Path, tell) -> dict:
    """Of ONNX: a process that needs no torch, so that quantizing has the memory to itself."""
    from trainer.export.card import write_card
    from trainer.export.onnx import finish

    work, graph, made = folder / "work", folder / "graph", folder / "out" / spec.folder_name
    finish(work, graph, made, spec.quantization, lambda done: tell("convert", 0.5 + done / 2))
    write_card(spec, made)
    for each in (work, graph):
        shutil.rmtree(each)
    sync_tree(made)
    return {"out": str(made)}


def check(spec: Export, folder: Path, tell) -> dict:
    """The answers of what was made, from `folder/out`; the engine asks a GGUF file itself."""
    from trainer.export import answer_file

    told = answer_file.read(Path(spec.reference))
    (made,) = (folder / "out").iterdir()
    path = folder / ANSWERS
    progress = partial(tell, "check")
    if spec.format == "onnx":
        from trainer.export import onnx

        rows, runtime = onnx.answers(made, told, spec.threads, progress), onnx.runtime()
    else:
        from trainer.export import check

        base = Path(spec.base.path) if spec.adapter_alone else None
        rows, runtime = check.answers(made, base, told, progress), check.runtime(base)
    answer_file.write(path, rows, runtime=runtime)
    return {"answers": str(path)}


STAGES = {"reference": reference, "make": make, "finish": finish, "check": check}


class Progress:
    """Tells how far a stage is, twice a second at most, and its beginning and end always."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._last, self._stage = 0.0, ""

    def __call__(self, stage: str, done: float) -> None:
        now = time.monotonic()
        if stage != self._stage or done >= 1 or now - self._last >= 0.5:
            self._last, self._stage = now, stage
            self._protocol.emit(
                "progress", f"{stage}: {done:.0%}", stage=stage, done=round(min(1.0, max(0.0, done)), 3)
            )


def peak_bytes() -> int:
    """The most that this program has had resident. What the kernel sums up for `getrusage` counts the process that
    started it too.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _import(name: str, spec: Export) -> None:
    """What a stage computes with, and nothing beside it."""
    if name == "pack":
        return
    if spec.format == "onnx" and name in ("finish", "check"):
        # transformers' tokenizers take 270 MB more beside torch, and do as well without.
        sys.modules["torch"] = None
    else:
        import torch

        torch.set_num_threads(spec.threads)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def main() -> int:
    protocol = Protocol()
    protocol.watch()
    try:
        name, folder = sys.argv[1], Path(sys.argv[2]).resolve()
        spec = read_spec(folder)
        settle(spec.threads)
        _import(name, spec)
        result = STAGES[name](spec, folder, Progress(protocol))
        protocol.emit("result", name, **result, peak_memory_mb=round(peak_bytes() / 1e6))
        return 0
    except Exception as problem:
        traceback.print_exc()
        error = explain(problem)
        if error.code == "out_of_memory":
            error = JobError(
                "out_of_memory", "The machine's memory is not enough for this export. Try again when less is running."
            )
        protocol.emit("error", str(error), code=error.code, **error.data)
        return EXIT_FAILED


if __name__ == "__main__":
    leave(main())
