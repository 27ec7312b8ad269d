"""Monitors a library that writes a large file of weights: reports the progress, and keeps its input out of memory."""

import contextlib
import ctypes
import threading
from pathlib import Path

from trainer.runtime.protocol import Report

INTERVAL_SECONDS = 0.1
MADV_PAGEOUT = 21


class WriteMonitor:
    """A context that reports how much of `out` is written, as a share of the checkpoint in `source`.

    The checkpoint is mapped into memory. Its pages are clean and can be read from the file again; paging them out keeps
    this process from growing to the model's size.
    """

    def __init__(self, source: Path, out: Path, report: Report) -> None:
        self._files = sorted(source.resolve().glob("*.safetensors"))
        self._total = max(1, sum(file.stat().st_size for file in self._files))
        self._out, self._report = out, report
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._libc = ctypes.CDLL(None)
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __enter__(self) -> "WriteMonitor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_SECONDS):
            # Only Linux lists the mappings of a process.
            with contextlib.suppress(OSError):
                self._page_out()
            with contextlib.suppress(OSError):
                self._report(min(1.0, self._out.stat().st_size / self._total))

    def _page_out(self) -> None:
        """Advice to the kernel, without any effect on contents; kernels that do not know it ignore it."""
        names = {str(file) for file in self._files}
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, *_, name = line.split(maxsplit=5)
            if name in names:
                first, end = (int(address, 16) for address in span.split("-"))
                self._libc.madvise(first, end - first, MADV_PAGEOUT)
