"""The process's side of its pipes: JSON lines out on stdout, the end of stdin as the sign that the server is gone, and
SIGTERM.
"""

import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_FAILED = 1
EXIT_SERVER_GONE = 74
EXIT_STOPPED = 75


class StopAsked(BaseException):
    """SIGTERM came in the middle of work that may be dropped; no handler of ordinary failures should take it for
    one.
    """


class Protocol:
    """Owns the real stdout from the moment it is made; whatever else is printed, by Python or by a native library, goes
    to stderr.
    """

    def __init__(self, quiet: bool = False) -> None:
        """A `quiet` one tells nothing but errors."""
        self._quiet = quiet
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._last_metrics = 0.0
        self.stop_asked = False
        self._can_finish_step = False
        self._droppable = False

    def watch(self) -> None:
        """From now on the process ends with the server, and on SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        # Only a pipe tells of a server (Node's are sockets). A terminal or a file means that a person runs this by
        # hand.
        kind = os.fstat(0).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            threading.Thread(target=self._wait_for_end_of_stdin, daemon=True).start()

    def steps_begin(self) -> None:
        """SIGTERM now waits for a checkpoint, instead of ending the process at once."""
        self._can_finish_step = True

    def steps_end(self) -> None:
        self._can_finish_step = False
        if self.stop_asked:
            os._exit(EXIT_STOPPED)

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """What is done within changes nothing that lasts: SIGTERM breaks it off with StopAsked instead of waiting for
        its end.
        """
        self._droppable = True
        try:
            if self.stop_asked:
                raise StopAsked
            yield
        finally:
            self._droppable = False

    def emit(self, type: str, message: str, **data: object) -> None:
        if self._quiet and type != "error":
            return
        line = json.dumps({"type": type, "message": message, "data": data}, allow_nan=False) + "\n"
        rest = line.encode()
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._out, rest) :]
            except BrokenPipeError:
                os._exit(EXIT_SERVER_GONE)

    def metrics_due(self, last: bool) -> bool:
        """True at most twice a second, and always for the last step: quick steps must not flood the service's event
        log.
        """
        now = time.monotonic()
        if last or now - self._last_metrics >= 0.5:
            self._last_metrics = now
            return True
        return False

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        self.stop_asked = True
        if not self._can_finish_step:
            os._exit(EXIT_STOPPED)
        if self._droppable:
            self._droppable = False
            raise StopAsked

    def _wait_for_end_of_stdin(self) -> None:
        while os.read(0, 4096):
            pass
        os._exit(EXIT_SERVER_GONE)


def leave(status: int) -> NoReturn:
    """Ends the process without the interpreter's own clean-up: torch's takes a second, and it waits for a lock of the
    stdin thread.
    """
    sys.stderr.flush()
    os._exit(status)


class Silent:
    """The protocol of a run with nobody to talk to: a measurement, a preview."""

    stop_asked = False

    def emit(self, *_: object, **__: object) -> None:
        pass

    def metrics_due(self, last: bool) -> bool:
        return False

    def steps_begin(self) -> None:
        pass

    def steps_end(self) -> None:
        pass

    @contextmanager
    def droppable(self) -> Iterator[None]:
        yield
