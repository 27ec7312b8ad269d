"""Makes an export and asks it what the trainer's own model was asked: `python -m trainer.export FOLDER`.

Reads `FOLDER/spec.json` (trainer/export/spec.py), writes JSON lines on stdout (trainer/runtime/protocol.py) and files
under `FOLDER/out`. Its
stages are processes of their own, which end with this one. Exit status: 0 done, 1 failed after an `error` line, 74 the
server is gone,
75 stopped by SIGTERM.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

from trainer.export.reference_cache import is_measured, kept_answers
from trainer.export.spec import Export, read_spec
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import EXIT_FAILED, Protocol, leave

STAGES = {
    "huggingface": ("reference", "make", "check"),
    "onnx": ("reference", "make", "finish", "check"),
    # The engine asks the file itself: it is the runtime that a GGUF is for.
    "gguf": ("reference", "make"),
}


class Told(Exception):
    """The stage has told its error itself."""


def export(spec: Export, folder: Path, protocol: Protocol) -> None:
    stages, told = list(STAGES[spec.format]), []
    if kept_answers(spec) and is_measured(spec):
        stages.remove("reference")
        told.append({"reference": spec.reference, "peak_memory_mb": 0})
    told += [run(stage, folder, protocol) for stage in stages]
    result = {"answers": None}
    for each in told:
        result |= each
    # They run one after the other, so the largest is what the export took.
    result["peak_memory_mb"] = max(each["peak_memory_mb"] for each in told)
    made = Path(result["out"])
    files = sorted(path for path in made.rglob("*") if path.is_file()) if made.is_dir() else [made]
    protocol.emit(
        "result", "Made", **result, files=[{"path": str(file), "size_bytes": file.stat().st_size} for file in files]
    )


def run(stage: str, folder: Path, protocol: Protocol) -> dict:
    """Runs a stage, passes on what it tells, and returns its result. Raises Told or JobError where it has none."""
    result, told = None, False
    command = [sys.executable, "-m", "trainer.export.stage", stage, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        for raw in child.stdout:
            line = json.loads(raw)
            if line["type"] == "result":
                result = line["data"]
            else:
                told = told or line["type"] == "error"
                protocol.emit(line["type"], line["message"], **line["data"])
        status = child.wait()
    if status == 0 and result is not None:
        return result
    if told:
        raise Told
    if status == -signal.SIGKILL:
        raise JobError(
            "out_of_memory", f"The export was killed in its stage '{stage}', as a machine does that runs out of memory."
        )
    raise JobError("internal", f"The export's stage '{stage}' ended with status {status}.")


def main() -> int:
    protocol = Protocol()
    protocol.watch()
    try:
        folder = Path(sys.argv[1]).resolve()
        export(read_spec(folder), folder, protocol)
        return 0
    except Told:
        return EXIT_FAILED
    except JobError as error:
        protocol.emit("error", str(error), code=error.code, **error.data)
        return EXIT_FAILED


if __name__ == "__main__":
    leave(main())
