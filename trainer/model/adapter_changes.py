"""Reads a PEFT adapter as changes to its base's tensors: LoRA pairs and replaced tensors. The base is not needed."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer.model.adapter_file import by_pattern, read_pairs
from trainer.model.adapter_gguf import as_stored
from trainer.model.skeleton import Skeleton
from trainer.model.tensors import Entry, read_header
from trainer.runtime.errors import JobError
from trainer.runtime.json_object import is_object

PREFIX = "base_model.model."
PART = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.default)?(?:\.weight)?$"
)
# Settings of adapters that are more than W + s B A, or that change other weights than the base's own.
UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "layer_replication",
    "ensure_weight_tying",
    "arrow_config",
    "corda_config",
)
# These change the base's weights before training, so the adapter does not belong to the checkpoint's weights.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LoraPair:
    """The LoRA pair of a weight: adds `scale * b @ a`; float32 a [rank, inputs] and b [outputs, rank]. Those of stacked
    experts have a dimension before these.

    `transposed`: the weight is stored as [inputs, outputs].
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that the pair changes, as it is stored."""
        *experts, outputs, inputs = *self.b.shape[:-1], self.a.shape[-1]
        return (*experts, inputs, outputs) if self.transposed else (*experts, outputs, inputs)

    def rows(self, span: slice) -> torch.Tensor:
        """What is added to these rows of the stored weight, float32 [rows, ...]: experts, where there are some, are
        rows.
        """
        if self.transposed:
            return (self.scale * self.a[:, span]).T @ self.b.T
        return self.b[span] @ (self.scale * (self.a if self.a.ndim == 2 else self.a[span]))


@dataclass(frozen=True)
class Adapter:
    """An adapter's changes by the names of the base's tensors."""

    config: dict[str, Any]
    pairs: dict[str, LoraPair] = field(default_factory=dict[str, LoraPair])
    replaced: dict[str, Entry] = field(default_factory=dict[str, Entry])

    @property
    def names(self) -> set[str]:
        """The names of the tensors that it changes."""
        return self.pairs.keys() | self.replaced.keys()


def invalid(message: str) -> JobError:
    """The error of an adapter that cannot be merged."""
    return JobError("adapter_invalid", message)


def read_adapter(folder: Path, base: Path | None = None) -> Adapter:
    """Reads PEFT's `folder`. `base`: the checkpoint, which tells how its files keep experts that the adapter changes.
    Raises JobError("adapter_invalid") with the reason if the adapter cannot be merged.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as problem:
        raise invalid(f"adapter_config.json cannot be read: {problem}.") from problem
    _require_plain(config)
    file = folder / "adapter_model.safetensors"
    if not file.exists():
        raise invalid("The adapter has no adapter_model.safetensors.")
    # Layers that PEFT names as parameters have the form of others.
    changes_experts = any(not name.endswith(".weight") for name in config.get("target_parameters") or ())
    experts = _pairs_of_experts(folder, base) if changes_experts and base else {}
    halves: dict[str, dict[str, Entry]] = {}
    replaced: dict[str, Entry] = {}
    for name, entry in read_header(file).items():
        if not name.startswith(PREFIX):
            raise invalid(f"The adapter's tensor {name[:200]} belongs to no weight of the base.")
        base_name = name.removeprefix(PREFIX)
        if re.match(r".*\.experts(\.base_layer)*\.lora_", base_name) and experts:
            continue
        if match := PART.match(base_name):
            halves.setdefault(match["module"], {})[match["part"]] = entry
        elif "lora_" in base_name:
            raise invalid(f"The adapter's tensor {name[:200]} is not one that can be merged.")
        else:
            replaced[base_name.replace(".base_layer.", ".")] = entry
    pairs = {f"{module}.weight": _pair(module, parts, config) for module, parts in halves.items()} | experts
    if not pairs and not replaced:
        raise invalid("The adapter has no tensors.")
    return Adapter(config, pairs, replaced)


def _pairs_of_experts(folder: Path, base: Path) -> dict[str, LoraPair]:
    """The pairs of experts, by the names of the base's tensors."""
    skeleton = Skeleton(base)
    _, pairs = read_pairs(folder, skeleton.model)
    stacked = {name: pair for name, pair in pairs.items() if pair.b.ndim == 3}
    if not all(bool(each.isfinite().all()) for pair in stacked.values() for each in (pair.a, pair.b)):
        raise invalid("The adapter's experts have weights that are not numbers (NaN or infinite).")
    return {name: LoraPair(pair.a, pair.b, 1.0, False) for name, pair in as_stored(stacked, skeleton).items()}


def _require_plain(config: Any) -> None:
    if not is_object(config) or config.get("peft_type") != "LORA":
        raise invalid("Only LoRA adapters can be merged.")
    for name in UNSUPPORTED:
        if config.get(name):
            raise invalid(
                f"adapter_config.json: '{name}' cannot be merged here. Export the adapter alone (merge: false)."
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(BASE_CHANGING_INITS):
        message = (
            f"adapter_config.json: an adapter initialized with '{start}' changes the weights of its "
            "base and cannot be merged here."
        )
        raise invalid(message)


def _pair(module: str, parts: dict[str, Entry], config: dict[str, Any]) -> LoraPair:
    embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    names = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
    if set(parts) != set(names):
        missing = sorted(set(names) - set(parts)) or sorted(set(parts) - set(names))
        raise invalid(f"The adapter's tensors of {module} are not a pair of A and B: {missing[0]}.")
    a, b = (read_finite(parts[name], f"{module}.{name}") for name in names)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise invalid(f"The adapter's A and B of {module} do not fit each other: {list(a.shape)} and {list(b.shape)}.")
    rank = a.shape[0]
    expected = by_pattern(config.get("rank_pattern"), module, config.get("r"))
    if rank == 0 or rank != expected:
        raise invalid(f"The adapter's {module} has rank {rank}; adapter_config.json says {expected}.")
    alpha = by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise invalid(f"adapter_config.json: lora_alpha of {module} is {alpha!r}.")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    # An embedding's weight is [tokens, width], transposed against a linear layer's.
    return LoraPair(a, b, scale, embedding or bool(config.get("fan_in_fan_out")))


def read_finite(entry: Entry, name: str) -> torch.Tensor:
    """The tensor as float32, in its stored shape. Raises JobError("adapter_invalid") if a value is not finite."""
    tensor = entry.whole().float()
    if not bool(tensor.isfinite().all()):
        raise invalid(f"The adapter's {name} has weights that are not numbers (NaN or infinite).")
    return tensor
