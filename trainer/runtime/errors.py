"""Errors that end a run and that its owner can act on."""

import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

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
    return JobError("internal", f"The trainer failed: {described(problem)}")


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
        raise JobError("internal", f"{what} ({described(problem)}). {instead}") from problem


def described(problem: BaseException) -> str:
    """An unforeseen failure as a part of a sentence, in words where Python has none."""
    # Copying a folder raises a list of what failed.
    while isinstance(problem, OSError) and problem.args and isinstance(problem.args[0], list):
        problem = OSError(cast(Any, problem.args[0])[0][-1])
    kind = type(problem).__name__
    if isinstance(problem, KeyError):
        return f"{problem} is missing or unknown"
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{Path(str(problem.filename)).name}: {problem.strerror}"
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if isinstance(problem, AssertionError) and not lines and problem.__traceback__:
        lines = [f"{traceback.extract_tb(problem.__traceback__)[-1].line} does not hold"]
    # A heading says nothing without what follows.
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{kind}: {without_paths(said)[:300]}".rstrip(". ") if said else kind


COMPARE = (
    "Compare its files with those of the model that it was made from; if they are whole, this version does not know "
    "such a model."
)


@contextmanager
def doing(what: str) -> Generator[None]:
    """Says of an unforeseen failure what was being done to a base. A RuntimeError says it itself."""
    try:
        yield
    except Exception as problem:
        if type(problem) is RuntimeError:
            raise
        with converting(f"{what} failed", COMPARE):
            raise


def _of_machine(problem: BaseException) -> JobError | None:
    """The failure of this machine that caused the problem: no memory, or no disk; None if there is none."""
    cause: BaseException | None = problem
    while cause:
        known = explain(cause) if isinstance(cause, Exception) else None
        if known and known.code in ("storage_full", "out_of_memory"):
            return known
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def passes(problem: BaseException) -> bool:
    """Whether another try may succeed."""
    return _of_machine(problem) is not None


def reason(problem: BaseException) -> str:
    """Why a base was not added, as a sentence for users."""
    if known := _of_machine(problem):
        if known.code == "storage_full":
            return "The disk is full, or cannot be written: make room, then run the same command again."
        return "The machine's memory is not enough for it: end other programs, or take a smaller base."
    if type(problem) in (RuntimeError, SystemExit, JobError):
        return f"{str(problem).strip().rstrip('.')}."
    return f"Reading its files failed ({described(problem)}). {COMPARE}"
