"""Merges an adapter into a checkpoint: W + s B A for adapted weights, everything else unchanged.

Works on some rows at a time, so it takes little memory for any model. Sums are computed in float32 and rounded once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.model.adapter_changes import Adapter, LoraPair, invalid
from trainer.model.skeleton import Skeleton
from trainer.model.tensors import (
    DTYPES,
    FLOATING,
    SHARD_BYTES,
    Entry,
    PlannedTensor,
    read_checkpoint,
    write_checkpoint,
)
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Report

HEADS = ("lm_head.weight", "embed_out.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "tok_embeddings.weight")


@dataclass(frozen=True)
class Merged:
    """`untied`: embeddings and head were one tensor and are two now, as the adapter changed only one of them."""

    untied: bool


def merge(
    base: Path, adapter: Adapter | None, out: Path, dtype: str | None, report: Report, vectors: bool = True
) -> Merged:
    """Writes the merged weights into `out`. `dtype`: the type of all floating-point weights, null for the checkpoint's
    own.

    `vectors`: whether norms and biases get that type too. Raises JobError if adapter and base do not fit.
    """
    config = json.loads((base / "config.json").read_text())
    entries = read_checkpoint(base)
    untied = False
    if adapter:
        _require_whole_weights(config)
        skeleton = Skeleton(base)
        adapter = _named_as(entries, adapter, skeleton)
        entries, untied = _untied(entries, adapter, config)
        _require_fit(entries, adapter, skeleton)
    planned = {name: _planned(name, entry, adapter, dtype, vectors) for name, entry in entries.items()}
    write_checkpoint(out, planned, SHARD_BYTES, report)
    return Merged(untied)


def _require_whole_weights(config: dict[str, Any]) -> None:
    if config.get("quantization_config"):
        message = (
            "The base's weights are quantized, so nothing can be added to them. Export the adapter alone "
            "(merge: false)."
        )
        raise JobError("parameter_not_supported", message)


def _named_as(entries: dict[str, Entry], adapter: Adapter, skeleton: Skeleton) -> Adapter:
    """Renames the adapter's tensors to the checkpoint's names: some checkpoints omit the prefix of the model's
    modules, or call them something else.
    """

    def own(name: str) -> str:
        if name in entries or name in HEADS:
            return name
        if (stored := skeleton.stored_name(name)) in entries:
            return stored
        # As checkpoints of Qwen2.5-VL and Gemma 3 name their language model; transformers has since put it elsewhere.
        for published in ("model.", "language_model.model."):
            if (renamed := name.replace("model.language_model.", published, 1)) in entries:
                return renamed
        ends = [entry for entry in entries if name.endswith(f".{entry}") or entry.endswith(f".{name}")]
        return ends[0] if len(ends) == 1 else name

    named = [{own(name): value for name, value in tensors.items()} for tensors in (adapter.pairs, adapter.replaced)]
    return replace(adapter, pairs=named[0], replaced=named[1])


def _untied(entries: dict[str, Entry], adapter: Adapter, config: dict[str, Any]) -> tuple[dict[str, Entry], bool]:
    """Splits tied embeddings and head into two tensors if the adapter changes only one use."""
    embeddings = [name for name in entries if name.endswith(EMBEDDINGS)]
    # Older configurations without the field mean true.
    tied = config.get("tie_word_embeddings", not any(name in entries for name in HEADS))
    heads = [name for name in adapter.names if name in HEADS]
    if not tied or not (heads or adapter.names & set(embeddings)):
        return entries, False
    if len(embeddings) != 1:
        raise invalid(
            "The adapter changes the embeddings, and which of the base's tensors they are is not "
            "known. Export it alone (merge: false)."
        )
    return {**entries, heads[0] if heads else HEADS[0]: entries[embeddings[0]]}, True


def _require_fit(entries: dict[str, Entry], adapter: Adapter, skeleton: Skeleton) -> None:
    for name in sorted(adapter.names):
        if name not in entries:
            raise invalid(f"The adapter changes {name}, which the base does not have.")
    for name, pair in adapter.pairs.items():
        if entries[name].dtype not in FLOATING or pair.shape != entries[name].shape:
            pair = _transposed(pair, entries[name], adapter)
            if pair is None:
                message = (
                    f"The adapter's {name} is {list(adapter.pairs[name].shape)}; the base's is "
                    f"{list(entries[name].shape)}."
                )
                raise invalid(message)
            adapter.pairs[name] = pair
    for name, entry in adapter.replaced.items():
        if entry.shape != entries[name].shape:
            raise invalid(f"The adapter's {name} is {list(entry.shape)}; the base's is {list(entries[name].shape)}.")
    config = adapter.config
    targets: str | list[str] | None = config.get("target_modules")
    narrowed = any(config.get(name) for name in ("layers_to_transform", "layers_pattern", "exclude_modules"))
    if isinstance(targets, list) and not narrowed:
        # Not all tensors of the files: an expert's are stacked in memory, and layers that predict a second token are
        # left out.
        layers = [name for name, module in skeleton.model.named_modules() if isinstance(module, torch.nn.Linear)]
        expected = {skeleton.stored_name(f"{name}.weight") for name in layers if _is_one_of(name, targets)}
        if missing := sorted((expected & entries.keys()) - adapter.pairs.keys()):
            raise invalid(
                f"The adapter has nothing for {missing[0]}, although adapter_config.json names it as changed."
            )


def _is_one_of(module: str, targets: list[str]) -> bool:
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _transposed(pair: LoraPair, entry: Entry, adapter: Adapter) -> LoraPair | None:
    """The pair transposed, if that fits: a linear layer in a model whose other layers store weights the other way
    round.
    """
    other = replace(pair, transposed=not pair.transposed)
    return (
        other
        if adapter.config.get("fan_in_fan_out") and other.shape == entry.shape and entry.dtype in FLOATING
        else None
    )


def _planned(name: str, entry: Entry, adapter: Adapter | None, dtype: str | None, vectors: bool) -> PlannedTensor:
    pair = adapter.pairs.get(name) if adapter else None
    source = adapter.replaced.get(name, entry) if adapter else entry
    changes_dtype = entry.dtype in FLOATING and (len(entry.shape) > 1 or vectors)
    target_dtype = dtype if dtype and changes_dtype else entry.dtype

    def pieces() -> Iterator[torch.Tensor]:
        for span, rows in source.pieces():
            if pair is None and source.dtype == target_dtype:
                yield rows
                continue
            sum32 = rows.float() if pair is None else rows.float() + pair.rows(span)
            rounded = sum32.to(DTYPES[target_dtype])
            if not bool(rounded.isfinite().all()):
                raise _not_numbers(name, target_dtype, bool(sum32.isfinite().all()))
            yield rounded

    return PlannedTensor(target_dtype, entry.shape, pieces)


def _not_numbers(name: str, target_dtype: str, too_large: bool) -> JobError:
    if too_large:
        return JobError(
            "parameter_not_supported", f"{name} has weights too large for {target_dtype}. Take bf16 or fp32."
        )
    return invalid(f"{name} would have weights that are not numbers (NaN or infinite).")
