"""Bounds for work whose cost a stranger's file decides."""

import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress

import psutil


class _TookTooLong(BaseException):
    """No Exception: what is bounded may ignore those."""


@contextmanager
def bounded(what: str, cpu_seconds: float = 5, bytes: int = 1 << 30) -> Generator[None]:
    """Ends what takes more time of the CPU, or more further memory where the system bounds that. In the main thread
    alone. Raises RuntimeError: `what` takes too much.
    """

    def stop(*_: object) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + bytes, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    except (_TookTooLong, MemoryError):
        # Not with that as its cause: the machine has memory enough.
        raise RuntimeError(f"{what} takes more than {cpu_seconds:.0f} s or {bytes / 1e9:.0f} GB.") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
