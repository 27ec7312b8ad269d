"""Memory of this process and of the machine, on Linux and on macOS."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")
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
