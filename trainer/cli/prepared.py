"""A trainer that waits for its run: `python -m trainer.cli.prepared THREADS`.

Imports the trainer's libraries, which takes seconds, then becomes the program that a line on stdin names: JSON with
`module`, `run_dir` and `env` (added to the environment). It answers the line with `taken` on stdout at once, also while
it still imports. Before, it starts no thread of torch and touches no GPU.
"""

import json
import os
import queue
import runpy
import sys
import threading
from contextlib import suppress
from typing import Any

from trainer.runtime.process import configure_process, importing
from trainer.runtime.protocol import EXIT_SERVER_GONE

PROGRAMS = ("trainer.cli.train", "trainer.cli.estimate")


def listen(requests: "queue.SimpleQueue[dict[str, Any]]", out: int) -> None:
    """Reads one line from stdin, then waits for its end: the server is gone."""
    received = b""
    while not received.endswith(b"\n"):
        if not (chunk := os.read(0, 65536)):
            os._exit(EXIT_SERVER_GONE)
        received += chunk
    os.write(out, b"taken\n")
    os.close(out)
    requests.put(json.loads(received))
    while os.read(0, 65536):
        pass
    os._exit(EXIT_SERVER_GONE)


def main() -> None:
    """Waits for a request and becomes its program. Raises ValueError for one that cannot be prepared."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # The program redirects stdout.
    threading.Thread(target=listen, args=(requests, os.dup(1)), daemon=True).start()
    configure_process(int(sys.argv[1]))
    # The program would fail the same way, and reports why.
    with suppress(Exception), importing():
        import trainer.run.save  # noqa: F401  # pyright: ignore[reportUnusedImport]
    request = requests.get()
    if request["module"] not in PROGRAMS:
        raise ValueError(f"{request['module']} cannot be prepared")
    os.environ.update(request["env"])
    sys.argv = [request["module"], request["run_dir"]]
    runpy.run_module(request["module"], run_name="__main__")


if __name__ == "__main__":
    main()
