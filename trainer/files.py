"""Files that are on disk when they are said to be."""

import os
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
