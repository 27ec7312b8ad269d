"""The trainer's protocol with the server: JSON lines on stdout, end of stdin when the server is gone, and SIGTERM to
stop.
"""

import json
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn

from trainer.runtime.errors import JobError, explain

EXIT_FAILED = 1
EXIT_SERVER_GONE = 74
EXIT_STOPPED = 75

# Takes the finished share of some work, 0 to 1.
Report = Callable[[float], None]


class StopRequested(BaseException):
    """SIGTERM arrived during interruptible work. A BaseException, so that handlers of ordinary failures do not catch
    it.
    """


class Protocol:
    """Owns the real stdout. Everything else printed there, by Python or by a native library, goes to stderr."""

    def __init__(self, quiet: bool = False) -> None:
        """`quiet`: report only errors."""
        self._quiet = quiet
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._last_metrics = 0.0
        self.stop_requested = False
        self._can_finish_step = False
        self._interruptible = False
        # Called before the process ends by a failure that is not the job's, as the loss of another process.
        self.before_failure: Callable[[], None] = lambda: None

    def watch(self, reads_stdin: bool = False) -> None:
        """From now on the process ends with the server, and on SIGTERM. `reads_stdin`: the program reads it, and ends
        with it, by itself.
        """
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if not reads_stdin:
            end_with_server()

    def steps_begin(self) -> None:
        """From now on SIGTERM waits for a checkpoint instead of ending the process at once."""
        self._can_finish_step = True

    def steps_end(self) -> None:
        """From now on SIGTERM ends the process at once again; one that waited ends it here."""
        self._can_finish_step = False
        if self.stop_requested:
            os._exit(EXIT_STOPPED)

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """For work without lasting effects: SIGTERM interrupts it with StopRequested instead of waiting for its end."""
        self._interruptible = True
        try:
            if self.stop_requested:
                raise StopRequested
            yield
        finally:
            self._interruptible = False

    def emit(self, type: str, message: str, **data: object) -> None:
        """Writes a line, whole even where threads emit at once. Ends the process if nobody reads."""
        if self._quiet and type != "error":
            return
        self.emit_for_all(type, message, **data)

    def emit_for_all(self, type: str, message: str, **data: object) -> None:
        """The same, also of a process that is quiet."""
        line = json.dumps({"type": type, "message": message, "data": data}, allow_nan=False) + "\n"
        remaining = line.encode()
        with self._lock:
            try:
                while remaining:
                    remaining = remaining[os.write(self._out, remaining) :]
            except BrokenPipeError:
                os._exit(EXIT_SERVER_GONE)

    def metrics_due(self, last: bool) -> bool:
        """True at most twice a second, and always for the last step: fast steps must not flood the service's event
        log.
        """
        now = time.monotonic()
        if last or now - self._last_metrics >= 0.5:
            self._last_metrics = now
            return True
        return False

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        self.stop_requested = True
        if not self._can_finish_step:
            os._exit(EXIT_STOPPED)
        if self._interruptible:
            self._interruptible = False
            raise StopRequested


def run_program(
    main: Callable[[Protocol], int | None],
    explain: Callable[[Exception], JobError | None] | None = explain,
    quiet: bool = False,
    reads_stdin: bool = False,
) -> NoReturn:
    """Runs `main` to the process's end, with the status that it returns. A failure ends it with EXIT_FAILED, and with
    an `error` line of what `explain` returns, if anything.
    """
    protocol = Protocol(quiet)
    protocol.watch(reads_stdin)
    try:
        status = main(protocol) or 0
    except Exception as problem:
        traceback.print_exc()
        if explain and (error := explain(problem)):
            protocol.emit("error", str(error), code=error.code, **error.data)
        else:
            protocol.before_failure()
        status = EXIT_FAILED
    exit_process(status)


def end_with_server() -> None:
    """From now on the process ends when its stdin does. Only a pipe belongs to a server (Node's pipes are sockets): a
    terminal or a file means that a person runs this.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(EXIT_SERVER_GONE)

    kind = os.fstat(0).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
        threading.Thread(target=wait, daemon=True).start()


def exit_process(status: int) -> NoReturn:
    """Ends the process without the interpreter's cleanup: torch's takes a second, and it waits for a lock of the stdin
    thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class SilentProtocol(Protocol):
    """A protocol that reports nothing, for measurements and previews. stdout stays as it is."""

    def __init__(self) -> None:
        self.stop_requested = False

    def emit(self, type: str, message: str, **data: object) -> None:
        """Reports nothing."""

    def metrics_due(self, last: bool) -> bool:
        """Never."""
        return False

    def steps_begin(self) -> None:
        """SIGTERM keeps its meaning."""

    def steps_end(self) -> None:
        """SIGTERM keeps its meaning."""

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Nothing interrupts it."""
        yield
