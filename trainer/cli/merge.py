"""A base and an adapter as one GGUF file, as the engine computes them together: `python -m trainer.cli.merge BASE
ADAPTER OUT`.

W + alpha / rank * B A for each weight that the adapter takes; everything else is the base's, byte for byte. Tensor by
tensor and some
rows at a time, so that it takes little memory whatever the model.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from trainer.runtime.protocol import Protocol, leave

EXIT_NOT_MERGEABLE = 3

# A sum is kept in eight bits where the base has fewer: what training adds is far below the steps of four, and most of
# it would be rounded away. What is wider stays as it is.
WIDE = (Type.F32, Type.F16, Type.BF16)
SUM_TYPE = Type.Q8_0
# Weights that are computed in one go.
AT_ONCE = 1 << 22


class NotMergeableError(Exception):
    """The two files do not make one."""


def merge(base_file: Path, adapter_file: Path, out: Path) -> None:
    """Writes `out` as a whole or not at all. Raises NotMergeableError."""
    base, adapter = gguf.GGUFReader(base_file), gguf.GGUFReader(adapter_file)
    parts, scale = _parts_of(adapter)
    sums = {tensor.name: _type_of_sum(tensor) for tensor in base.tensors if tensor.name in parts}
    if missing := sorted(parts.keys() - sums.keys()):
        raise NotMergeableError(f"the base has no {missing[0]}, which the adapter changes")
    aside = out.with_suffix(".part")
    try:
        with aside.open("wb") as file:
            file.write(_head(base, sums))
            for tensor in base.tensors:
                start = file.tell()
                if tensor.name in sums:
                    for rows in _sum(tensor, *parts[tensor.name], scale):
                        file.write(quants.quantize(rows, sums[tensor.name]).tobytes())
                else:
                    file.write(tensor.data.tobytes())
                file.write(bytes(-(file.tell() - start) % int(base.alignment)))
        # Not synced: nobody looks for it after a power cut.
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)


def _parts_of(adapter: gguf.GGUFReader) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float]:
    """A [rank, inputs] and B [outputs, rank] of each weight, and what their product is multiplied by."""
    kind = adapter.get_field("adapter.type")
    if kind is None or kind.contents() != "lora" or adapter.get_field("adapter.alora.invocation_tokens"):
        raise NotMergeableError("the adapter is no plain LoRA")
    tensors = {tensor.name: tensor for tensor in adapter.tensors}
    names = [name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")]
    if len(tensors) != 2 * len(names) or any(f"{name}.lora_b" not in tensors for name in names):
        raise NotMergeableError("the adapter has more than pairs of A and B")
    # Of an embedding the two are the other way round.
    if "token_embd.weight" in names:
        raise NotMergeableError("the adapter changes the embeddings")

    def read(name: str) -> np.ndarray:
        return quants.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)

    parts = {name: (read(f"{name}.lora_a"), read(f"{name}.lora_b")) for name in names}
    ranks = {a.shape[0] for a, _ in parts.values()}
    if len(ranks) != 1:
        raise NotMergeableError("the adapter has several ranks, or none")
    alpha = float(adapter.get_field("adapter.lora.alpha").contents())
    # As the library has it: without an alpha nothing is scaled.
    return parts, alpha / ranks.pop() if alpha else 1.0


def _type_of_sum(tensor: gguf.ReaderTensor) -> Type:
    if len(tensor.shape) != 2:
        raise NotMergeableError(f"{tensor.name} is no matrix")
    return tensor.tensor_type if tensor.tensor_type in WIDE else SUM_TYPE


def _head(base: gguf.GGUFReader, sums: dict[str, Type]) -> bytes:
    """All that stands before the weights: the base's own, with the types of the sums, and where each tensor now
    begins.
    """
    head = bytearray(base.data[: base.data_offset])
    begin = 0
    for tensor in base.tensors:
        kind = sums.get(tensor.name, tensor.tensor_type)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        # Name, dimensions, then these two.
        place = tensor.field.offset + sum(int(part.nbytes) for part in tensor.field.parts[:-2])
        head[place : place + 12] = int(kind).to_bytes(4, sys.byteorder) + begin.to_bytes(8, sys.byteorder)
        length = int(tensor.n_elements) // block * size
        begin += length + -length % int(base.alignment)
    return bytes(head)


def _sum(tensor: gguf.ReaderTensor, a: np.ndarray, b: np.ndarray, scale: float) -> Iterator[np.ndarray]:
    inputs, outputs = (int(length) for length in tensor.shape)
    if a.shape[1] != inputs or b.shape[0] != outputs or b.shape[1] != a.shape[0]:
        raise NotMergeableError(f"the adapter's {tensor.name} has another shape than the base's")
    step = max(1, AT_ONCE // inputs)
    for first in range(0, outputs, step):
        rows = slice(first, first + step)
        merged = quants.dequantize(tensor.data[rows], tensor.tensor_type) + b[rows] @ (scale * a)
        if not np.isfinite(merged).all():
            raise NotMergeableError(f"{tensor.name} would have weights that are not numbers")
        yield merged


def main() -> int:
    # Answers go first, but not alone: beside streams that fill the cores, the last in line would take minutes for its
    # seconds.
    with suppress(OSError):
        os.nice(10)
    Protocol().watch()
    try:
        merge(*(Path(name) for name in sys.argv[1:4]))
    except NotMergeableError as error:
        print(error, file=sys.stderr)
        return EXIT_NOT_MERGEABLE
    return 0


if __name__ == "__main__":
    leave(main())
