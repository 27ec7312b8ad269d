"""Files that are on disk when they are said to be."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(made: Path) -> None:
    """A file, or a folder with all in it, and its name in the folder that it is in."""
    for path in [made, *made.rglob("*"), made.parent]:
        sync(path)


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Where to write what is `path` once it is whole: a process that is killed, or fails, leaves nothing or what was
    there before.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        sync(aside)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)
