"""Looks on while a library writes a large file of weights: it tells how far that is, and keeps what was read from
staying in memory.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

EVERY_SECONDS = 0.1
MADV_PAGEOUT = 21


class Watch:
    """While it is entered: `tell` is told the share of `out` that is written, of what the checkpoint in `source` has.

    The checkpoint is mapped into memory. Its pages that were read are clean, and come back from the file where they are
    read again; given
    back as they pass, they never make this process as large as the model.
    """

    def __init__(self, source: Path, out: Path, tell: Callable[[float], None]) -> None:
        self._files = sorted(source.resolve().glob("*.safetensors"))
        self._total = max(1, sum(file.stat().st_size for file in self._files))
        self._out, self._tell = out, tell
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._libc = ctypes.CDLL(None)
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(EVERY_SECONDS):
            self._give_back()
            with contextlib.suppress(OSError):
                self._tell(min(1.0, self._out.stat().st_size / self._total))

    def _give_back(self) -> None:
        """Advice: a kernel that does not know it does nothing, and no content changes either way."""
        names = {str(file) for file in self._files}
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, *_, name = line.split(maxsplit=5)
            if name in names:
                first, end = (int(place, 16) for place in span.split("-"))
                self._libc.madvise(first, end - first, MADV_PAGEOUT)
