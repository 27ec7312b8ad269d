"""Python reads this at its start where this folder is in PYTHONPATH: a module of the trainer then runs as a fork of the
process at FORKS (server.py), which has imported torch and transformers. Without that process nothing changes.

This process stays: it has the exit status and passes on the signals of the fork.
"""

import os
import sys


def is_forked(words: list[str]) -> bool:
    """Whether a command, `-m MODULE ARGUMENTS`, runs as a fork: not the stages of an export that must not see torch."""
    if words[:1] != ["-m"] or not words[1].startswith(("trainer.", "tests.families.")):
        return False
    return words[1:3] not in (["trainer.export.stage", "finish"], ["trainer.export.stage", "check"]) or (
        b'"onnx"' not in open(os.path.join(words[3], "spec.json"), "rb").read()
    )


def run(address: str, words: list[str]) -> None:
    """Runs the command as a fork, and ends as it ends."""
    import json
    import signal
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
        socket.send_fds(connection, [struct.pack("!I", len(request))], [0, 1, 2])
        connection.sendall(request)
        # It reads stdin itself, and must see its end.
        os.close(0)
        answer = connection.recv(4)
    (status,) = struct.unpack("!i", answer) if len(answer) == 4 else (1,)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if (_address := os.environ.get("FORKS")) and is_forked(sys.orig_argv[1:]):
    run(_address, sys.orig_argv[1:])
