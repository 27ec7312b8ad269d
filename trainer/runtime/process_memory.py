"""Memory of this process and of the machine, on Linux and on macOS."""

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")
MAPS = Path("/proc/self/maps")
CONTROL_GROUP = Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Bytes of this process that are in memory now."""
    return psutil.Process().memory_info().rss


def peak_bytes() -> int:
    """Peak resident bytes of this program. Linux's number for `getrusage` includes the program that started it."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # macOS counts bytes, Linux kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_bytes() -> int:
    """Bytes that this process may still allocate: the machine's available memory, within the limit of the control
    group.
    """
    available = psutil.virtual_memory().available
    with suppress(OSError):
        limit = (CONTROL_GROUP / "memory.max").read_text().strip()
        if limit != "max":
            return min(available, int(limit) - int((CONTROL_GROUP / "memory.current").read_text()))
    return available


def mapped_files(suffix: str) -> list[range]:
    """Addresses at which files with this suffix are mapped; none on macOS, which does not list them."""
    ranges: list[range] = []
    with suppress(OSError):
        for line in MAPS.read_text().splitlines():
            if line.endswith(suffix):
                start, end = line.split()[0].split("-")
                ranges.append(range(int(start, 16), int(end, 16)))
    return ranges


def return_freed() -> bool:
    """Returns free heap memory to the system; takes tens of milliseconds. True if there was any."""
    # musl and macOS do not have it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim and trim(0))
