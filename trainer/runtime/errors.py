"""Errors that end a run and that its owner can act on."""

import re
from collections.abc import Generator
from contextlib import contextmanager

PATHS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")


class JobError(Exception):
    """A failure with a code from the service's list and a message for users.

    Codes: out_of_memory, dataset_invalid, base_missing, adapter_invalid, non_finite_loss, storage_full, internal.
    """

    def __init__(self, code: str, message: str, **data: object) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def without_paths(text: str) -> str:
    """Removes the folders from file paths in a library's message: users must not see where the service stores files."""
    return PATHS.sub("", text)


# What gloo and NCCL say when another process of the run is gone.
LOST_PEER = re.compile(r"connection (closed|reset|refused)|broken pipe|socket timeout|timed out|remote process", re.I)


def peer_is_lost(problem: BaseException) -> bool:
    """Whether a failure only says that another process of a distributed run has ended: the cause is there."""
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    if kinds & {"DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    return "RuntimeError" in kinds and "gloo" in str(problem).lower() and bool(LOST_PEER.search(str(problem)))


def explain(problem: BaseException) -> JobError | None:
    """Converts any failure of this process to a JobError; None if another process has failed, so that the run is tried
    again. Out of memory has several forms: Python's, CUDA's, and the CPU allocator's
    RuntimeError. So does a full disk: Python's errors, and those of the libraries that write.
    """
    if isinstance(problem, JobError):
        return problem
    if peer_is_lost(problem):
        return None
    text = str(problem).lower()
    if (
        isinstance(problem, MemoryError)
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
    ):
        advice = "Lower batch_size or max_length, or take a smaller base."
        return JobError("out_of_memory", f"The machine's memory is not enough for this run. {advice}")
    # torch reports no cause of a failed write.
    if any(
        words in text
        for words in ("no space left on device", "disk quota exceeded", "iostream error", "failed writing file")
    ):
        return JobError("storage_full", "The disk is full, or cannot be written.")
    return JobError("internal", f"The trainer failed: {_described(problem)}")


@contextmanager
def converting(what: str, instead: str) -> Generator[None]:
    """Whatever a converter raises, users read a sentence: `what` has failed, why, and what to do `instead`. Errors that
    are for them, and those of the machine, stay as they are. Raises JobError("internal").
    """
    try:
        yield
    except Exception as problem:
        known = explain(problem)
        if known is None or known is problem or known.code != "internal":
            raise
        raise JobError("internal", f"{what} ({_described(problem)[:300]}). {instead}") from problem


def _described(problem: BaseException) -> str:
    lines = [line.strip() for line in without_paths(str(problem)).splitlines() if line.strip()]
    return ": ".join([type(problem).__name__, *lines[:1]])
