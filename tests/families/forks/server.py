"""Forks for the programs of the trainer: `python tests/families/forks/server.py SOCKET`. Each of the many processes of
`npm run test:families` would import torch and transformers for five seconds of processor time.

It ends with its stdin. It computes nothing itself, so that torch has no threads when it forks.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))


def preload() -> None:
    """Imports what the programs import, bitsandbytes too."""
    from trainer.runtime.converters import packages
    from trainer.runtime.import_scan import cache_import_scan

    cache_import_scan()
    import accelerate  # noqa: F401
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import tests.families.packing  # noqa: F401
    import trainer.cli.prepare_base
    import trainer.export.check
    import trainer.export.output
    import trainer.export.reference
    import trainer.run.base_check
    import trainer.run.prepare
    import trainer.run.save  # noqa: F401

    with packages(ROOT / ".local/llama/source"):
        import conversion  # noqa: F401
    gc.collect()
    gc.freeze()


def become(words: list[str], folder: str, environment: dict[str, str]) -> int:
    """Runs `-m MODULE ARGUMENTS` in this process. Returns its exit status."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [words[1], *words[2:]]
    sys.path[0] = folder
    status = 0
    try:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the standard streams of who asks."""
    header, streams, _, _ = socket.recv_fds(connection, 4, 3)
    (missing,) = struct.unpack("!I", header)
    received = b""
    while len(received) < missing:
        received += connection.recv(missing - len(received))
    return json.loads(received), streams


def serve(connection: socket.socket) -> None:
    """Forks for a request, passes on its signals, and tells its end. Who asked may be gone: then it is killed."""
    request, streams = receive(connection)
    child = os.fork()
    if child == 0:
        connection.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os._exit(become(**request))
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            break
        received = connection.recv(16)
        for number in received or bytes([signal.SIGKILL]):
            os.kill(child, number)
        if not received:
            break
    _, status = os.waitpid(child, 0)
    connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))


def main() -> None:
    """Serves requests until stdin ends. Prints a line when it is ready."""
    preload()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    serve(connection)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    # Nobody waits for those that serve a request.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    main()
