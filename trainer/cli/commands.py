"""Trains adapters by commands: `python -m trainer.cli.commands RUN_FOLDER`.

Reads `RUN_FOLDER/spec.json` (CommandSpec of trainer/runtime/spec.py), then a command a line from stdin: JSON with `id`,
`command` and its fields (trainer/policy/commands.py). Answers each on stdout with a line of the type `answer`, whose
data has the `id` and either `fields` or an `error` with its `code` and `message`; a failed command changes nothing that
later ones need. Exit status: 74 when stdin ends, as the server is gone; 75 by SIGTERM, at once.
"""

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path

from trainer.runtime.errors import JobError, explain
from trainer.runtime.process import configure_process, importing
from trainer.runtime.protocol import EXIT_SERVER_GONE, Protocol, run_program
from trainer.runtime.spec import read_command_spec


def read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Reads stdin; its end ends the process, also within a command."""
    rest = b""
    while chunk := os.read(0, 1 << 20):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(EXIT_SERVER_GONE)


def main(protocol: Protocol) -> None:
    """Obeys commands until stdin ends."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    spec = read_command_spec(Path(sys.argv[1]).resolve())
    configure_process(spec.threads, quantized=spec.method == "qlora")
    with importing():
        import torch
        from transformers.utils.logging import disable_progress_bar

        from trainer.policy.commands import Commands
        from trainer.run.memory import keep_heap
    disable_progress_bar()
    torch.set_num_threads(spec.threads)
    commands = Commands(spec)
    keep_heap(commands.workspace.device)
    while True:
        request = json.loads(lines.get())
        try:
            fields = commands.run(request["command"], request)
            protocol.emit("answer", request["command"], id=request["id"], fields=fields)
        # One that cannot be written as JSON too: other adapters in memory belong to others.
        except Exception as problem:
            traceback.print_exc()
            error = explain(problem) or JobError("internal", "Something failed inside the trainer.")
            told = {"code": error.code, "message": str(error), "data": error.data}
            protocol.emit("answer", request["command"], id=request["id"], error=told)


if __name__ == "__main__":
    run_program(main, reads_stdin=True)
