"""Runs one stage of an export: `python -m trainer.export.stage NAME FOLDER`. A separate process frees its memory for
the next.

The last line is a `result` with the stage's data.
"""

import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trainer.export.spec import Export, StageReport, instead_of, read_spec
from trainer.runtime.errors import JobError, converting, explain
from trainer.runtime.files import sync_tree
from trainer.runtime.process import configure_process, importing
from trainer.runtime.process_memory import peak_bytes
from trainer.runtime.protocol import Protocol, run_program

ANSWERS = "answers.json"

# Does its work in the folder, reports its progress, and returns the data of its result.
Stage = Callable[[Export, Path, StageReport], dict[str, Any]]


def reference(spec: Export, _folder: Path, report: StageReport) -> dict[str, Any]:
    """The reference answers and the importance matrix, where they are not cached."""
    with importing():
        from trainer.export.reference import reference

    reference(spec, lambda done: report("reference", done))
    return {"reference": spec.reference}


def make(spec: Export, folder: Path, report: StageReport) -> dict[str, Any]:
    """The exported files; for ONNX its unquantized graph."""
    with importing():
        from trainer.export.output import write_output

    output = write_output(spec, folder, report)
    return {"out": str(output)} if output else {}


def finish(spec: Export, folder: Path, report: StageReport) -> dict[str, Any]:
    """The last stage of ONNX in a process without torch, so that quantizing can use the memory."""
    from trainer.export.card import write_card
    from trainer.export.onnx import finish

    work, graph, output = folder / "work", folder / "graph", folder / "out" / spec.folder_name
    finish(work, graph, output, spec.quantization, lambda done: report("convert", 0.5 + done / 2))
    write_card(spec, output)
    for temporary in (work, graph):
        shutil.rmtree(temporary)
    sync_tree(output)
    return {"out": str(output)}


def check(spec: Export, folder: Path, report: StageReport) -> dict[str, Any]:
    """The answers of the exported files in `folder/out`; the engine checks a GGUF file itself. Raises
    JobError("internal") without reference answers.
    """
    from trainer.export import answer_file

    reference_answers = answer_file.read(Path(spec.reference))
    if not reference_answers:
        raise JobError("internal", "The reference answers are gone.")
    (output,) = (folder / "out").iterdir()
    path = folder / ANSWERS
    progress = partial(report, "check")
    if spec.format == "onnx":
        from trainer.export import onnx

        rows, runtime = onnx.answers(output, reference_answers, spec.threads, progress), onnx.runtime()
    else:
        with importing():
            from trainer.export import check

        base = Path(spec.base.path) if spec.adapter_alone else None
        rows, runtime = check.answers(output, base, reference_answers, progress), check.runtime(base)
    answer_file.write(path, rows, runtime=runtime)
    return {"answers": str(path)}


def _explained(stage: Stage) -> Stage:
    """A stage whose failure is said in a sentence for users, whatever it raises."""

    def explained(spec: Export, folder: Path, report: StageReport) -> dict[str, Any]:
        with converting(f"The model cannot be exported as {spec.format}", instead_of(spec.format)):
            return stage(spec, folder, report)

    return explained


STAGES = {
    "reference": reference,
    "make": _explained(make),
    "finish": _explained(finish),
    "check": _explained(check),
}


class Progress:
    """Reports a stage's progress at most twice a second, and always its start and end."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._last, self._stage = 0.0, ""

    def __call__(self, stage: str, done: float) -> None:
        """`done`: the finished share of the stage, 0 to 1."""
        now = time.monotonic()
        if stage != self._stage or done >= 1 or now - self._last >= 0.5:
            self._last, self._stage = now, stage
            self._protocol.emit(
                "progress", f"{stage}: {done:.0%}", stage=stage, done=round(min(1.0, max(0.0, done)), 3)
            )


def _import(name: str, spec: Export) -> None:
    """Imports only what the stage needs."""
    if name == "pack":
        return
    if spec.format == "onnx" and name in ("finish", "check"):
        # With torch, transformers' tokenizers take 270 MB more without need.
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    else:
        with importing():
            import torch

        torch.set_num_threads(spec.threads)
    with importing():
        from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def run_stage(name: str, stage: Stage, folder_name: str, protocol: Protocol) -> None:
    """Runs a stage on an export's folder, and emits its `result` line with the peak memory."""
    folder = Path(folder_name).resolve()
    spec = read_spec(folder)
    configure_process(spec.threads)
    _import(name, spec)
    result = stage(spec, folder, Progress(protocol))
    protocol.emit("result", name, **result, peak_memory_mb=round(peak_bytes() / 1e6))


def explain_export(problem: BaseException) -> JobError | None:
    """As `explain`, with the advice for an export."""
    error = explain(problem)
    if error is None or error.code != "out_of_memory":
        return error
    return JobError(
        "out_of_memory", "The machine's memory is not enough for this export. Try again when less is running."
    )


if __name__ == "__main__":
    run_program(
        lambda protocol: run_stage(sys.argv[1], STAGES[sys.argv[1]], sys.argv[2], protocol), explain=explain_export
    )
