"""The folder that was made as one file: `python -m trainer.export.pack FOLDER`, once it has been checked.

Reads `FOLDER/spec.json`, and `FOLDER/check.json` with the check's figures for the model card where it is there. Writes
one archive beside
`FOLDER/out`, whole or not at all; its last line is a `result` with the archive's name, size and SHA-256. Without an
archive in the spec
it tells that of the files as they are. The same files make the same archive, whoever packs them: one owner, one mode,
one time.
"""

import hashlib
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainer.export.card import add_check
from trainer.export.spec import Export
from trainer.export.stage import STAGES, main
from trainer.runtime.errors import JobError
from trainer.runtime.files import placed
from trainer.runtime.protocol import leave

AT_ONCE = 1 << 20
# The first time that a zip can hold.
EARLIEST = 315532800


def pack(spec: Export, folder: Path, tell) -> dict:
    (made,) = (folder / "out").iterdir()
    files = sorted(path for path in made.rglob("*") if path.is_file()) if made.is_dir() else [made]
    if made.is_dir() and (folder / "check.json").exists():
        add_check(made, json.loads((folder / "check.json").read_text()))
    if not spec.archive:
        return {"out": str(made), "files": [_told(path, path.relative_to(folder / "out")) for path in files]}
    if not made.is_dir():
        raise JobError("internal", "There is no folder to pack.")
    target = folder / f"{made.name}.{spec.archive}"
    # Both forms name a file by its path from the folder's own name on.
    names = [(path, f"{made.name}/{path.relative_to(made).as_posix()}") for path in files]
    total = sum(path.stat().st_size for path in files)
    write = {"tar": write_tar, "zip": write_zip}[spec.archive]
    digest = write(target, names, time_of(spec), lambda done: tell("pack", done / max(1, total)))
    tell("pack", 1.0)
    return {"out": str(target), "files": [{"name": target.name, "size_bytes": target.stat().st_size, "sha256": digest}]}


def time_of(spec: Export) -> int:
    """When the model was made, in seconds."""
    try:
        return max(EARLIEST, int(datetime.fromisoformat(str(spec.card.get("created_at"))).timestamp()))
    except ValueError:
        return EARLIEST


class Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data) -> int:
        self.digest.update(data)
        return self._file.write(data)


class Counted:
    """A file that tells how much of all has been read."""

    def __init__(self, file, read: Iterator[int], tell) -> None:
        self._file, self._read, self._tell = file, read, tell

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._tell(self._read.send(len(data)))
        return data


def counter() -> Iterator[int]:
    """Sums up what it is sent."""
    total = 0
    while True:
        total += yield total


def write_tar(target: Path, names: list[tuple[Path, str]], time: int, tell) -> str:
    """Returns the SHA-256 of what it wrote."""
    read = counter()
    next(read)

    with placed(target) as aside, aside.open("wb") as file:
        hashed = Hashed(file)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT, copybufsize=AT_ONCE) as archive:
            for path, name in names:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = path.stat().st_size, time, 0o644
                with path.open("rb") as source:
                    archive.addfile(entry, Counted(source, read, tell))
        return hashed.digest.hexdigest()


def write_zip(target: Path, names: list[tuple[Path, str]], time: int, tell) -> str:
    """Nothing is compressed: weights do not get smaller. Sizes stand before the contents, as readers of streams need
    them there.
    """
    read = counter()
    next(read)

    with placed(target) as aside:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
            for path, name in names:
                entry = zipfile.ZipInfo(name, datetime.fromtimestamp(time, UTC).timetuple()[:6])
                entry.file_size, entry.external_attr, entry.create_system = path.stat().st_size, 0o100644 << 16, 3
                with path.open("rb") as source, archive.open(entry, "w") as into:
                    counted = Counted(source, read, tell)
                    while block := counted.read(AT_ONCE):
                        into.write(block)
        return sha256_of(aside)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _told(path: Path, name: Path) -> dict:
    return {"name": name.as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256_of(path)}


if __name__ == "__main__":
    STAGES["pack"] = pack
    sys.argv = [sys.argv[0], "pack", sys.argv[1]]
    leave(main())
