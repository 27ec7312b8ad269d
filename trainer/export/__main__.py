"""Makes an export and compares its answers with the trainer's own model: `python -m trainer.export FOLDER`.

Reads `FOLDER/spec.json` (trainer/export/spec.py), writes JSON lines on stdout (trainer/runtime/protocol.py) and files
under `FOLDER/out`. Each stage is a separate process and ends with this one. Exit status: 0 done, 1 failed after an
`error` line, 74 the server is gone, 75 stopped by SIGTERM.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.export.reference_cache import cached_answers, has_importance
from trainer.export.spec import Export, read_spec
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import EXIT_FAILED, Protocol, run_program

STAGES = {
    "huggingface": ("reference", "make", "check"),
    "onnx": ("reference", "make", "finish", "check"),
    # The engine checks a GGUF file itself, as it is the runtime for it.
    "gguf": ("reference", "make"),
}


class ErrorReported(Exception):
    """The stage has already reported its error."""


def export(spec: Export, folder: Path, protocol: Protocol) -> None:
    """Runs the stages of an export, and emits the `result` line with its files."""
    stages = list(STAGES[spec.format])
    results: list[dict[str, Any]] = []
    if cached_answers(spec) and has_importance(spec):
        stages.remove("reference")
        results.append({"reference": spec.reference, "peak_memory_mb": 0})
    results += [run(stage, folder, protocol) for stage in stages]
    result: dict[str, Any] = {"answers": None}
    for stage_result in results:
        result |= stage_result
    # Stages run one after the other, so the largest peak is the export's.
    result["peak_memory_mb"] = max(stage_result["peak_memory_mb"] for stage_result in results)
    output = Path(result["out"])
    files = sorted(path for path in output.rglob("*") if path.is_file()) if output.is_dir() else [output]
    protocol.emit(
        "result", "Made", **result, files=[{"path": str(file), "size_bytes": file.stat().st_size} for file in files]
    )


def run(stage: str, folder: Path, protocol: Protocol) -> dict[str, Any]:
    """Runs a stage, forwards its lines and returns its result. Raises ErrorReported or JobError if it fails."""
    result, error_reported = None, False
    command = [sys.executable, "-m", "trainer.export.stage", stage, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        for raw in child.stdout or ():
            line = json.loads(raw)
            if line["type"] == "result":
                result = line["data"]
            else:
                error_reported = error_reported or line["type"] == "error"
                protocol.emit(line["type"], line["message"], **line["data"])
        status = child.wait()
    if status == 0 and result is not None:
        return result
    if error_reported:
        raise ErrorReported
    if status == -signal.SIGKILL:
        raise JobError(
            "out_of_memory",
            f"The export was killed in its stage '{stage}', probably because the machine ran out of memory.",
        )
    raise JobError("internal", f"The export's stage '{stage}' ended with status {status}.")


def main(protocol: Protocol) -> int:
    """Exports the folder that the command line names. Returns the exit status."""
    folder = Path(sys.argv[1]).resolve()
    try:
        export(read_spec(folder), folder, protocol)
    except ErrorReported:
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    # Other failures are not reported: the service tries again after a process that ended without a reason.
    run_program(main, explain=lambda problem: problem if isinstance(problem, JobError) else None)
