"""Writes a LoRA adapter for the engine, whatever its base's conversion does to the weights.

The library converts a base with rules of its own for each family: it permutes rows for its rotary embedding, reorders
heads, splits, joins and stacks weights. Such a rule is linear and moves weights without changing them, so two tables
tell all about it: one of each weight's row, one of its column, converted in the weight's place. The factors B
[outputs, rank] and A [rank, inputs] are then moved alike. Llama.cpp's own converter of adapters imitates the rules'
operations on factors instead, and knows not all of them.
"""

import hashlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.model.adapter_file import Pair, read_pairs
from trainer.model.moves import Move, move_of, tables, unconvertible
from trainer.model.skeleton import Skeleton
from trainer.runtime.converters import packages, suited

# Types that numpy has too: their tensors are written without the library.
PLAIN = {"f32": torch.float32, "f16": torch.float16}
# The writer of the library begins each tensor at a multiple of so many bytes.
ALIGNMENT = 32


class AdapterWriter:
    """Writes adapters of the checkpoint in `base` for the engine, with tensors of `kind` (f32, f16, bf16 or q8_0). The
    conversion and the file's header are made with the first adapter; others of its shape follow in a fraction of the
    time.
    """

    def __init__(self, converters: Path, base: Path, kind: str) -> None:
        self.converters, self.base, self.kind = converters, base, kind
        self.made_for: tuple[Any, ...] | None = None
        self.moves: dict[str, Move] = {}
        self.scales: dict[str, torch.Tensor] = {}
        self.header = b""

    def write(self, config: dict[str, Any], pairs: dict[str, Pair], file: Path, skeleton: Skeleton) -> str:
        """Writes PEFT's configuration and pairs to `file`, and returns its SHA-256. `skeleton`: of the base. Raises
        JobError("adapter_invalid") with a reason for the user if a weight of it is none of the engine's.
        """
        alpha = float(config["lora_alpha"])
        shape = (alpha, [(name, pair.a.shape, pair.b.shape) for name, pair in pairs.items()])
        if shape != self.made_for:
            self._prepare(pairs, alpha, file, skeleton)
            self.made_for = shape
        quantizes = nullcontext() if self.kind in PLAIN else library(self.converters)
        with quantizes, torch.inference_mode(), file.open("wb") as out:
            digest = hashlib.sha256(self.header)
            out.write(self.header)
            for _, tensor in self._tensors(list(pairs.values()), alpha):
                data, _ = self._stored(tensor)
                for part in (data.tobytes(), bytes(-data.nbytes % ALIGNMENT)):
                    digest.update(part)
                    out.write(part)
        return digest.hexdigest()

    def _prepare(self, pairs: dict[str, Pair], alpha: float, file: Path, skeleton: Skeleton) -> None:
        with library(self.converters) as conversion, torch.inference_mode():
            import gguf

            models = [open_base(conversion, self.base, file) for _ in range(3)]
            self.moves = moves_of(models, {name: pair.shape for name, pair in pairs.items()}, skeleton)
            stacked = any(move.experts for move in self.moves.values())
            self.scales = _scales_of_experts(models[0], skeleton) if stacked else {}
            writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[models[0].model_arch])
            writer.add_type(gguf.GGUFType.ADAPTER)
            writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
            writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
            for name, tensor in self._tensors(list(pairs.values()), alpha):
                data, kind = self._stored(tensor)
                writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, gguf.GGMLQuantizationType[kind])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            writer.close()
        header = file.read_bytes()
        self.header = header + bytes(-len(header) % ALIGNMENT)

    def _tensors(self, sources: list[Pair], alpha: float) -> Iterator[tuple[str, torch.Tensor]]:
        for name, move in self.moves.items():
            pair = move.of(sources)
            # The engine scales by alpha and the rank of the tensor, which joined weights have several times.
            b = pair.b * (pair.b.shape[-1] / alpha)
            if (scale := self.scales.get(name.replace(".weight", ".scale"))) is not None:
                b = b * scale[:, None, None]
            halves = (pair.b, pair.a.mT) if name == "token_embd.weight" else (pair.a, b)
            yield f"{name}.lora_a", halves[0]
            yield f"{name}.lora_b", halves[1]

    def _stored(self, tensor: torch.Tensor) -> tuple[np.ndarray, str]:
        """A tensor as the file has it, and the library's name of its type."""
        # A row of a block format is whole blocks.
        kind = "f16" if self.kind == "q8_0" and tensor.shape[-1] % 32 else self.kind
        if kind in PLAIN:
            return tensor.to(PLAIN[kind]).contiguous().numpy(), kind.upper()
        import gguf

        stored = gguf.GGMLQuantizationType[kind.upper()]
        return gguf.quants.quantize(tensor.float().contiguous().numpy(), stored), stored.name


def write_adapter_gguf(converters: Path, base: Path, folder: Path, file: Path, kind: str) -> None:
    """Writes PEFT's `folder`, an adapter of the checkpoint in `base`, to `file`, with tensors of `kind`. Raises
    JobError("adapter_invalid") with a reason for the user if a weight of it is none of the engine's.
    """
    skeleton = Skeleton(base)
    config, pairs = read_pairs(folder, skeleton.model)
    AdapterWriter(converters, base, kind).write(config, pairs, file, skeleton)


@contextmanager
def library(converters: Path) -> Generator[Any]:
    """llama.cpp's package of conversions."""
    with packages(converters):
        yield import_module("conversion")


def open_base(conversion: Any, base: Path, file: Path) -> Any:
    """The library's converter of a checkpoint, which reads the names of its tensors. Nothing is written to `file`."""
    import gguf

    with suited(base):
        fields = conversion.ModelBase.load_hparams(base, False)
        kind = conversion.get_model_class(conversion.get_model_architecture(fields, conversion.ModelType.TEXT))
        model = kind(base, gguf.LlamaFileType.ALL_F32, file, eager=True, hparams=fields)
    # Mistral's is a wrapper around that of the model's kind.
    model = getattr(model, "impl", model)
    # Some classes keep what they were given in a field of the class.
    for name in dir(model):
        if name not in vars(model) and (kept := getattr(type(model), name, None)) in ({}, []):
            setattr(model, name, type(kept)())
    return model


def moves_of(models: list[Any], shapes: dict[str, tuple[int, ...]], skeleton: Skeleton) -> dict[str, Move]:
    """How the engine's weights, by their names, come from weights of these shapes. `models`: three converters of the
    base, which keep what they were given; `skeleton`: of the same. Raises JobError("adapter_invalid").
    """
    listed, moves = list(shapes.values()), dict[str, Move]()
    for number, (name, shape) in enumerate(shapes.items()):
        stored = [skeleton.as_stored(name, table) for table in tables(number, shape)]
        for part in stored[0]:
            for target, *converted in _by_rules(models, name, part, [table[part] for table in stored]):
                # Some rules write a constant vector beside a weight.
                if converted[0].ndim > 1:
                    moves[target] = move_of(listed, tuple(converted), target)
    used = set[int]().union(*(move.used for move in moves.values()))
    if left := [name for number, name in enumerate(shapes) if number not in used]:
        # Experts are stacked when all of a layer's have come.
        raise unconvertible(left[0], "the engine reads it only together with others that the adapter does not change")
    return moves


def as_stored(pairs: dict[str, Pair], skeleton: Skeleton) -> dict[str, Pair]:
    """The pairs of a model's weights by the names of its checkpoint's tensors, in their form."""
    sources, stored = list(pairs.values()), {}
    shapes = [pair.shape for pair in sources]
    for number, (name, pair) in enumerate(pairs.items()):
        each = [skeleton.as_stored(name, table) for table in tables(number, pair.shape)]
        for part in each[0]:
            stored[part] = move_of(shapes, tuple(table[part] for table in each), part).of(sources)
    return stored


def _scales_of_experts(model: Any, skeleton: Skeleton) -> dict[str, torch.Tensor]:
    """What the engine multiplies the outputs of experts by, [experts], by its names: it does so before it adds an
    adapter's part.
    """
    scales = {}
    for stored in [name for name, shape in skeleton.shapes.items() if len(shape) == 1 and "scale" in name]:
        table = skeleton.read(stored).float()
        for name, *made in _by_rules([model], stored, stored, [table]):
            if name.endswith("_exps.scale"):
                scales[name] = made[0]
    return scales


def _by_rules(models: list[Any], name: str, stored: str, parts: list[torch.Tensor]) -> Generator[tuple[Any, ...]]:
    """What converters make of a stored weight's tables, one for each: a name of the engine's and its tensors, one after
    the other, as those of stacked experts are large.
    """
    item = models[0].filter_tensors((stored, lambda: None))
    if item is None:
        raise unconvertible(name, "the engine does not read this weight")
    block = next((int(part) for part in item[0].split(".") if part.isdecimal()), None)
    made = [iter(model.modify_tensors(part, item[0], block)) for model, part in zip(models, parts, strict=True)]
    while True:
        try:
            each = [next(targets, None) for targets in made]
        except Exception as problem:
            raise unconvertible(name, f"{type(problem).__name__}: {problem}") from problem
        targets = [part for part in each if part is not None]
        if not targets:
            return
        yield targets[0][0], *(tensor for _, tensor in targets)
