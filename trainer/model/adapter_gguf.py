"""Writes a LoRA adapter for the engine, whatever its base's conversion does to the weights.

The library converts a base with rules of its own for each family: it permutes rows for its rotary embedding, reorders
heads, splits, joins and stacks weights. Such a rule is linear and moves weights without changing them, so two tables
tell all about it: one of each weight's row, one of its column, converted in the weight's place. The factors B
[outputs, rank] and A [rank, inputs] are then moved alike. Llama.cpp's own converter of adapters imitates the rules'
operations on factors instead, and knows not all of them.
"""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from trainer.model.adapter_file import Pair, read_pairs
from trainer.model.skeleton import Skeleton
from trainer.runtime.converters import packages, suited
from trainer.runtime.errors import JobError

# A table's entry: the number of the weight's pair, times this, and a row or column.
LINES = 1 << 24


def write_adapter_gguf(converters: Path, base: Path, folder: Path, file: Path, kind: str) -> None:
    """Writes PEFT's `folder`, an adapter of the checkpoint in `base`, to `file`, with tensors of `kind` (f32, f16, bf16
    or q8_0). Raises JobError("adapter_invalid") with a reason for the user if a weight of it is none of the engine's.
    """
    skeleton = Skeleton(base)
    config, pairs = read_pairs(folder, skeleton.model)
    with library(converters) as conversion, torch.inference_mode():
        import gguf

        models = [open_base(conversion, base, file) for _ in range(3)]
        converted = convert(models, pairs, skeleton)
        scales = _scales_of_experts(models[0], skeleton) if any(pair.b.ndim == 3 for pair in converted.values()) else {}
        writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[models[0].model_arch])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(config["lora_alpha"]))
        for name, pair in converted.items():
            # The engine scales by alpha and the rank of the tensor, which joined weights have several times.
            b = pair.b * (pair.b.shape[-1] / config["lora_alpha"])
            if (scale := scales.get(name.replace(".weight", ".scale"))) is not None:
                b = b * scale[:, None, None]
            halves = (pair.b, pair.a.mT) if name == "token_embd.weight" else (pair.a, b)
            for end, half in zip(("lora_a", "lora_b"), halves, strict=True):
                data = half.float().contiguous().numpy()
                # A row of a block format is whole blocks.
                stored = gguf.GGMLQuantizationType["F16" if kind == "q8_0" and data.shape[-1] % 32 else kind.upper()]
                writer.add_tensor(f"{name}.{end}", gguf.quants.quantize(data, stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


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


def convert(models: list[Any], pairs: dict[str, Pair], skeleton: Skeleton) -> dict[str, Pair]:
    """The pairs by the names of the engine's weights. `models`: three converters of the base, which keep what they
    were given; `skeleton`: of the same. Raises JobError("adapter_invalid").
    """
    sources, used = list(pairs.values()), set[int]()
    converted = {}
    for number, (name, pair) in enumerate(pairs.items()):
        stored = [skeleton.as_stored(name, table) for table in tables(number, pair.shape)]
        for part in stored[0]:
            for target, rows, columns, ones in _by_rules(models, name, part, [table[part] for table in stored]):
                # Some rules write a constant vector beside a weight.
                if rows.ndim > 1:
                    converted[target], joined = moved(sources, rows, columns, ones, target)
                    used |= joined
    if left := [name for number, name in enumerate(pairs) if number not in used]:
        # Experts are stacked when all of a layer's have come.
        raise unconvertible(left[0], "the engine reads it only together with others that the adapter does not change")
    return converted


def as_stored(pairs: dict[str, Pair], skeleton: Skeleton) -> dict[str, Pair]:
    """The pairs of a model's weights by the names of its checkpoint's tensors, in their form."""
    sources, stored = list(pairs.values()), {}
    for number, (name, pair) in enumerate(pairs.items()):
        rows, columns, ones = (skeleton.as_stored(name, table) for table in tables(number, pair.shape))
        for part in rows:
            stored[part], _ = moved(sources, rows[part], columns[part], ones[part], part)
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


def unconvertible(name: str, why: str) -> JobError:
    """The error of an adapter whose weight of this name the engine cannot take."""
    return JobError(
        "adapter_invalid", f"The adapter's change of {name} cannot be served unmerged: {why[:300]}. Merge the model."
    )


def tables(number: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Three float64 tensors of a weight's shape [outputs, inputs] or [experts, outputs, inputs]: the row of each entry,
    its column, both with the number of its pair; and ones. A stack's rows continue from expert to expert.
    """
    *stack, outputs, inputs = shape
    lines = torch.arange(outputs * (stack[0] if stack else 1), dtype=torch.float64).reshape(*stack, outputs, 1)
    rows, columns = lines, torch.arange(inputs, dtype=torch.float64)
    return (
        (number * LINES + rows).expand(shape),
        (number * LINES + columns).expand(shape),
        torch.ones((), dtype=torch.float64).expand(shape),
    )


def moved(
    sources: list[Pair], rows: torch.Tensor, columns: torch.Tensor, ones: torch.Tensor, name: str
) -> tuple[Pair, set[int]]:
    """The pair of an engine's weight whose entries come from these rows and columns of the sources' weights, and the
    sources' numbers. `rows`, `columns` and `ones` are the `tables` after the conversion, in the engine's shape. Raises
    JobError("adapter_invalid") if the conversion mixes rows and columns.
    """
    if rows.ndim == 3:
        parts = [moved(sources, *tables, name) for tables in zip(rows, columns, ones, strict=True)]
        used = set[int]().union(*(numbers for _, numbers in parts))
        return Pair(torch.stack([pair.a for pair, _ in parts]), torch.stack([pair.b for pair, _ in parts])), used
    numbers, scales = (rows[:, 0] / ones[:, 0] // LINES).long(), ones[:, :1]
    a, b = [], []
    for number in numbers.unique().tolist():
        chosen = numbers == number
        lines = rows[chosen] / ones[chosen] - number * LINES
        places = columns[chosen] / ones[chosen] - number * LINES
        if not (ones[chosen] == scales[chosen]).all():
            raise unconvertible(name, "its rows and columns are mixed")
        if (lines == lines[:, :1]).all() and (places == places[:1]).all():
            down, up = _picked(sources[number], lines[:, 0], places[0])
        elif (lines == lines[:1]).all() and (places == places[:, :1]).all():
            # Transposed.
            up, down = (factor.T for factor in _picked(sources[number], lines[0], places[:, 0]))
        else:
            raise unconvertible(name, "its rows and columns are mixed")
        part = torch.zeros(len(numbers), up.shape[1])
        part[chosen] = up * scales[chosen].float()
        a.append(down)
        b.append(part)
    return Pair(torch.cat(a), torch.cat(b, 1)), set(numbers.tolist())


def _picked(pair: Pair, lines: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A with these columns, and B with these rows, of the expert whose rows they are."""
    line, down, up = lines.long(), pair.a, pair.b
    if up.ndim == 3:
        outputs = up.shape[1]
        expert = int(line[0]) // outputs
        down, up, line = down[expert], up[expert], line - expert * outputs
    return down[:, places.long()], up[line]
