"""Merges a base and an adapter into one GGUF file.

`python -m trainer.cli.merge BASE ADAPTER OUT [BASE_NAME ADAPTER_NAME]`: W + alpha / rank * B A for each adapted weight,
as the engine computes it; everything else is copied byte for byte. Works on some rows of one tensor at a time, so it
takes little memory for any model.
"""

import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from trainer.runtime.gguf_reader import GgufReader
from trainer.runtime.protocol import Protocol, run_program

EXIT_NOT_MERGEABLE = 3

# Sums get eight bits if the base has fewer: training's changes are far below the steps of four bits, and rounding would
# lose most of them. Wider types stay.
FLOAT_TYPES = (Type.F32, Type.F16, Type.BF16)
SUM_TYPE = Type.Q8_0
# Weights computed at once.
CHUNK_WEIGHTS = 1 << 22


class NotMergeableError(Exception):
    """The base and the adapter cannot be merged."""


def merge(base_file: Path, adapter_file: Path, out: Path, names: tuple[str, str] | None = None) -> None:
    """Writes `out` atomically. With the `names` of base and adapter it also says what was merged: the engine reports it
    with each answer. Raises NotMergeableError."""
    base, adapter = GgufReader(base_file), GgufReader(adapter_file)
    parts = _lora_pairs(adapter, base)
    sums = {tensor.name: _type_of_sum(tensor) for tensor in base.tensors if tensor.name in parts}
    if missing := sorted(parts.keys() - sums.keys()):
        raise NotMergeableError(f"the base has no {missing[0]}, which the adapter changes")
    temporary = out.with_suffix(".part")
    try:
        with temporary.open("wb") as file:
            file.write(_header(base, sums, _provenance(base_file, adapter_file, names) if names else {}))
            for tensor in base.tensors:
                start = file.tell()
                if tensor.name in sums:
                    for rows in _sum(tensor, *parts[tensor.name]):
                        file.write(quants.quantize(rows, sums[tensor.name]).tobytes())
                else:
                    file.write(tensor.data.tobytes())
                file.write(bytes(-(file.tell() - start) % int(base.alignment)))
        # Not synced: the file is not needed after a power cut.
        temporary.rename(out)
    finally:
        temporary.unlink(missing_ok=True)


def _lora_pairs(adapter: GgufReader, base: GgufReader) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A [rank, inputs] and B [outputs, rank] of each weight, with the scale of their product in A; of stacked experts
    with a dimension before these.
    """
    kind = adapter.get_field("adapter.type")
    if kind is None or kind.contents() != "lora" or adapter.get_field("adapter.alora.invocation_tokens"):
        raise NotMergeableError("the adapter is no plain LoRA")
    tensors = {tensor.name: tensor for tensor in adapter.tensors}
    names = [name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")]
    if len(tensors) != 2 * len(names) or any(f"{name}.lora_b" not in tensors for name in names):
        raise NotMergeableError("the adapter has more than pairs of A and B")
    # The pair of an embedding is the other way round.
    if "token_embd.weight" in names:
        raise NotMergeableError("the adapter changes the embeddings")

    def read(name: str) -> np.ndarray:
        return quants.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)

    alpha = float(adapter.fields["adapter.lora.alpha"].contents())
    # What the engine multiplies the outputs of an expert's weight by, but not those of its adapter.
    factors = {tensor.name: tensor.data for tensor in base.tensors if tensor.name.endswith("_exps.scale")}
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in names:
        a, b = read(f"{name}.lora_a"), read(f"{name}.lora_b")
        # As in llama.cpp: without an alpha nothing is scaled.
        a *= alpha / b.shape[-1] if alpha else 1.0
        if (factor := factors.get(name.replace(".weight", ".scale"))) is not None:
            a /= factor[:, None, None]
        parts[name] = a, b
    if not parts:
        raise NotMergeableError("the adapter changes nothing")
    return parts


def _type_of_sum(tensor: gguf.ReaderTensor) -> Type:
    if len(tensor.shape) not in (2, 3):
        raise NotMergeableError(f"{tensor.name} is no matrix")
    return tensor.tensor_type if tensor.tensor_type in FLOAT_TYPES else SUM_TYPE


def _provenance(base_file: Path, adapter_file: Path, names: tuple[str, str]) -> dict[str, str]:
    def sha256(file: Path) -> str:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    base, adapter = names
    return {
        "tunery.merged.base": base,
        "tunery.merged.base_sha256": sha256(base_file),
        "tunery.merged.adapter": adapter,
        "tunery.merged.adapter_sha256": sha256(adapter_file),
    }


def _header(base: GgufReader, sums: dict[str, Type], added: dict[str, str]) -> bytes:
    """The bytes before the weights: the base's header with the sums' types, new data offsets and `added` metadata."""
    header = bytearray(base.data[: base.data_offset])
    data_offset = end = 0
    for tensor in base.tensors:
        kind = sums.get(tensor.name, tensor.tensor_type)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        # These 12 bytes follow the name and the dimensions.
        field_offset = tensor.field.offset + sum(int(part.nbytes) for part in tensor.field.parts[:-2])
        header[field_offset : field_offset + 12] = int(kind).to_bytes(4, sys.byteorder) + data_offset.to_bytes(
            8, sys.byteorder
        )
        length = int(tensor.n_elements) // block * size
        data_offset += length + -length % int(base.alignment)
        end = field_offset + 12
    if not added:
        return bytes(header)
    # The metadata begins behind magic, version, the number of tensors and its own number of fields.
    count = struct.unpack_from("<Q", header, 16)[0] + len(added)
    kind = struct.pack("<I", gguf.GGUFValueType.STRING)
    fields = b"".join(_string(key) + kind + _string(value) for key, value in added.items())
    whole = bytes(header[:16]) + struct.pack("<Q", count) + fields + bytes(header[24:end])
    return whole + bytes(-len(whole) % int(base.alignment))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _sum(tensor: gguf.ReaderTensor, a: np.ndarray, b: np.ndarray) -> Iterator[np.ndarray]:
    inputs, outputs, *experts = (int(length) for length in tensor.shape)
    if (*b.shape[:-1], a.shape[-1]) != (*experts, outputs, inputs) or b.shape[-1] != a.shape[-2]:
        raise NotMergeableError(f"the adapter's {tensor.name} has another shape than the base's")
    step = max(1, CHUNK_WEIGHTS // inputs)
    stacks = zip(tensor.data, a, b, strict=True) if experts else [(tensor.data, a, b)]
    for data, down, up in stacks:
        for first in range(0, outputs, step):
            rows = slice(first, first + step)
            merged = quants.dequantize(data[rows], tensor.tensor_type) + up[rows] @ down
            if not np.isfinite(merged).all():
                raise NotMergeableError(f"{tensor.name} would have weights that are not numbers")
            yield merged


def main(_protocol: Protocol) -> int:
    """Merges the files of the command line. Returns the exit status."""
    # Answers have priority, but not the lowest priority for this: behind streams that use all cores it would take
    # minutes instead of seconds.
    with suppress(OSError):
        os.nice(10)
    try:
        names = (sys.argv[4], sys.argv[5]) if len(sys.argv) > 5 else None
        merge(*(Path(name) for name in sys.argv[1:4]), names=names)
    except NotMergeableError as error:
        print(error, file=sys.stderr)
        return EXIT_NOT_MERGEABLE
    return 0


if __name__ == "__main__":
    run_program(main, explain=None)
