"""Reads and writes safetensors files in chunks: the library's own functions load all tensors of a file into memory.

The format: 8 bytes with the header's length, the header (JSON: each tensor's type, shape and offsets), the tensors'
bytes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from math import prod
from pathlib import Path
from typing import Any

import torch

from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Report

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
FLOATING = ("F64", "F32", "F16", "BF16")
# Numbers in memory at once.
CHUNK_VALUES = 1 << 22
MAX_HEADER_BYTES = 100_000_000
INDEX = "model.safetensors.index.json"
# A size that suits the Hub and loaders that read files in parallel.
SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Entry:
    """A tensor in a file. `start`: its offset in the file. `dtype`: the format's name for the type."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        """The size of its data."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def pieces(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Chunks of at most CHUNK_VALUES numbers: the rows of the first dimension, and these [rows, ...]. A scalar is
        one row. Raises JobError("internal") if the file ends before the tensor does.
        """
        rows = self.shape[0] if self.shape else 1
        width = prod(self.shape[1:])
        step = max(1, CHUNK_VALUES // max(1, width))
        size = width * DTYPES[self.dtype].itemsize
        with self.file.open("rb", buffering=0) as file:
            for first in range(0, rows, step):
                count = min(step, rows - first)
                data = bytearray(count * size)
                file.seek(self.start + first * size)
                _read_into(file, str(self.file), data)
                shape = (count, *self.shape[1:])
                yield (
                    slice(first, first + count),
                    torch.frombuffer(data, dtype=DTYPES[self.dtype]).view(shape) if data else torch.empty(shape),
                )

    def whole(self) -> torch.Tensor:
        """The tensor in memory, in its shape. Raises JobError("internal") if the file ends before it does."""
        parts = [piece for _, piece in self.pieces()]
        return (torch.cat(parts) if parts else torch.empty(0, dtype=DTYPES[self.dtype])).view(self.shape)


def _read_into(file: RawIOBase, name: str, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        count = file.readinto(view)
        if not count:
            raise JobError("internal", f"{name} ends in the middle of a tensor.")
        view = view[count:]


def read_header(file: Path) -> dict[str, Entry]:
    """Raises JobError("internal") if the file is not an intact safetensors file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(size, MAX_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        entries: dict[str, Entry] = {}
        for name, header_entry in header.items():
            if header_entry["dtype"] not in DTYPES:
                raise ValueError(f"the tensor {name} is {header_entry['dtype']}")
            begin, end = header_entry["data_offsets"]
            entry = Entry(file, header_entry["dtype"], tuple(header_entry["shape"]), 8 + length + begin)
            if entry.bytes != end - begin or entry.start + entry.bytes > size:
                raise ValueError(f"the tensor {name} is cut off")
            entries[name] = entry
        return entries
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise JobError("internal", f"{file.name} cannot be read as safetensors: {problem}.") from problem


def read_checkpoint(folder: Path) -> dict[str, Entry]:
    """The tensors of a checkpoint folder in file order. Raises JobError("base_missing") if a file is missing."""
    index = folder / INDEX
    if index.exists():
        files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    else:
        files = [folder / "model.safetensors"]
    if missing := [file.name for file in files if not file.exists()]:
        raise JobError("base_missing", f"The checkpoint's file {missing[0]} is not there.")
    entries: dict[str, Entry] = {}
    for file in files:
        entries |= dict(sorted(read_header(file).items(), key=lambda item: item[1].start))
    return entries


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write: `pieces` generates its rows in order, each piece [rows, ...]."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[torch.Tensor]]

    @property
    def bytes(self) -> int:
        """The size of its data."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def as_it_is(entry: Entry) -> Callable[[], Iterator[torch.Tensor]]:
    """The pieces of a tensor that is written as it was read."""
    return lambda: (piece for _, piece in entry.pieces())


def replace_checkpoint(folder: Path, entries: dict[str, Entry], planned: dict[str, PlannedTensor]) -> None:
    """Writes the files of a checkpoint with these `entries` anew. Takes the disk of both until it ends."""
    new = folder / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    write_checkpoint(new, planned, SHARD_BYTES, lambda _: None)
    # From here on the folder is not what the hub names: an interrupted `models add` begins again.
    (folder.parent / "revision").unlink(missing_ok=True)
    for file in {entry.file for entry in entries.values()} | {folder / INDEX}:
        file.unlink(missing_ok=True)
    for file in new.iterdir():
        file.rename(folder / file.name)
    new.rmdir()


def write_checkpoint(folder: Path, planned: dict[str, PlannedTensor], shard_bytes: int, report: Report) -> None:
    """Writes `model.safetensors`, or several files of at most `shard_bytes` with their index. Syncs every file.

    Calls `report` with the finished share. Raises JobError("internal") if a tensor's pieces have another size.
    """
    shards: list[dict[str, PlannedTensor]] = [{}]
    for name, tensor in planned.items():
        if shards[-1] and sum(entry.bytes for entry in shards[-1].values()) + tensor.bytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    total = sum(tensor.bytes for tensor in planned.values())
    done = 0
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for file, shard in zip(names, shards, strict=True):
        for size in write_file(folder / file, shard):
            done += size
            report(done / max(1, total))
    if len(shards) > 1:
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        parameters = sum(prod(tensor.shape) for tensor in planned.values())
        index = {"metadata": {"total_size": total, "total_parameters": parameters}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_file(path: Path, planned: dict[str, PlannedTensor]) -> Iterator[int]:
    """Writes a safetensors file. Yields the size in bytes of each piece once it is written. Raises JobError("internal")
    if a tensor's pieces have another size than was planned.
    """
    header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in planned.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.bytes],
        }
        offset += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Readers that map the file need tensors aligned to 8 bytes.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in planned.items():
            before = file.tell()
            for rows in tensor.pieces():
                data = rows.contiguous().view(-1).view(torch.uint8).numpy()
                file.write(data.data)
                yield data.nbytes
            if file.tell() - before != tensor.bytes:
                raise JobError("internal", f"{name} has another size than was planned.")
        file.flush()
        os.fsync(file.fileno())
