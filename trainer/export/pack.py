"""Packs a checked export into one file: `python -m trainer.export.pack FOLDER`.

Reads `FOLDER/spec.json`, and `FOLDER/check.json` with the check's figures for the model card if it exists. Writes one
archive next to `FOLDER/out`, atomically; the last line is a `result` with the archive's name, size and SHA-256. Without
an archive in the spec the result lists the files themselves. Archives are reproducible: one owner, one mode, one time.
"""

import hashlib
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from trainer.export.card import add_check
from trainer.export.spec import Export, StageReport
from trainer.export.stage import explain_export, run_stage
from trainer.runtime.errors import JobError
from trainer.runtime.files import atomic_write, sha256_of
from trainer.runtime.protocol import Report, run_program

CHUNK_BYTES = 1 << 20
# The earliest time in a zip, 1980-01-01.
EARLIEST = 315532800


def pack(spec: Export, folder: Path, report: StageReport) -> dict[str, Any]:
    """Packs the export in `folder/out`. Returns the data of the `result` line: `out`, and the name, size and SHA-256 of
    each of its `files`. Raises JobError("internal") if a single file is to be packed.
    """
    (output,) = (folder / "out").iterdir()
    files = sorted(path for path in output.rglob("*") if path.is_file()) if output.is_dir() else [output]
    if output.is_dir() and (folder / "check.json").exists():
        add_check(output, json.loads((folder / "check.json").read_text()))
    if not spec.archive:
        return {"out": str(output), "files": [_described(path, path.relative_to(folder / "out")) for path in files]}
    if not output.is_dir():
        raise JobError("internal", "There is no folder to pack.")
    target = folder / f"{output.name}.{spec.archive}"
    # Both formats name a file by its path from the folder's own name.
    names = [(path, f"{output.name}/{path.relative_to(output).as_posix()}") for path in files]
    total = sum(path.stat().st_size for path in files)
    write = {"tar": write_tar, "zip": write_zip}[spec.archive]
    digest = write(target, names, time_of(spec), lambda done: report("pack", done / max(1, total)))
    report("pack", 1.0)
    return {"out": str(target), "files": [{"name": target.name, "size_bytes": target.stat().st_size, "sha256": digest}]}


def time_of(spec: Export) -> int:
    """When the model was made, in unix seconds."""
    try:
        return max(EARLIEST, int(datetime.fromisoformat(str(spec.card.get("created_at"))).timestamp()))
    except ValueError:
        return EARLIEST


class HashingWriter:
    """Hashes a file while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Writes the bytes. Returns how many were written, as files do."""
        self.digest.update(data)
        return self._file.write(data)


class CountingReader:
    """Tells `count` the size of each piece that is read."""

    def __init__(self, file: BinaryIO, count: Callable[[int], None]) -> None:
        self._file, self._count = file, count

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        data = self._file.read(size)
        self._count(len(data))
        return data


def counter(report: Report) -> Callable[[int], None]:
    """A function that reports the running sum of the numbers that it gets."""
    total = 0

    def count(number: int) -> None:
        nonlocal total
        total += number
        report(total)

    return count


def write_tar(target: Path, names: list[tuple[Path, str]], time: int, report: Report) -> str:
    """Returns the archive's SHA-256."""
    count = counter(report)
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        hashed = HashingWriter(file)
        # A stream is only written to.
        stream = cast(BinaryIO, hashed)
        # Python's types do not know it for streams.
        size: dict[str, Any] = {"copybufsize": CHUNK_BYTES}
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, **size) as archive:
            for path, name in names:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = path.stat().st_size, time, 0o644
                with path.open("rb") as source:
                    archive.addfile(entry, CountingReader(source, count))
        return hashed.digest.hexdigest()


def write_zip(target: Path, names: list[tuple[Path, str]], time: int, report: Report) -> str:
    """Stores without compression, as weights do not shrink. Sizes come before the contents, for readers of streams.
    Returns the archive's SHA-256.
    """
    count = counter(report)
    with atomic_write(target) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for path, name in names:
                entry = zipfile.ZipInfo(name, datetime.fromtimestamp(time, UTC).timetuple()[:6])
                entry.file_size, entry.external_attr, entry.create_system = path.stat().st_size, 0o100644 << 16, 3
                with path.open("rb") as source, archive.open(entry, "w") as into:
                    counted = CountingReader(source, count)
                    while block := counted.read(CHUNK_BYTES):
                        into.write(block)
        return sha256_of(temporary)


def _described(path: Path, name: Path) -> dict[str, Any]:
    return {"name": name.as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256_of(path)}


if __name__ == "__main__":
    run_program(lambda protocol: run_stage("pack", pack, sys.argv[1], protocol), explain=explain_export)
