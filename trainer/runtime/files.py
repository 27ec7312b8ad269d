"""Durable file writes, and hashes of files."""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Syncs a file's content, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(root: Path) -> None:
    """Syncs a file or a folder with everything in it, and the folder that contains it."""
    for path in [root, *root.rglob("*"), root.parent]:
        sync(path)


@contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yields a temporary path that replaces `path` at the end, synced. After a failure or a kill `path` is as
    before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        sync(temporary)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Reads it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
