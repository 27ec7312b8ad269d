"""A PEFT adapter as what it does to each tensor of its base, without the base: LoRA's pairs, and tensors that are
replaced.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainer.export.tensors import Entry, read_header
from trainer.runtime.errors import JobError

PREFIX = "base_model.model."
PART = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.default)?(?:\.weight)?$"
)
# What changes more than W + s B A, or other weights than the base's own.
REFUSED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "ensure_weight_tying",
    "arrow_config",
    "corda_config",
)
# These change the base's weights before training begins, so the adapter stands on others than the checkpoint's.
CHANGING_STARTS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class Pair:
    """A weight's LoRA: `scale * b @ a` is added to it; float32 a [rank, inputs] and b [outputs, rank].

    `transposed`: the weight is kept as [inputs, outputs].
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.b.shape[0], self.a.shape[1]
        return (inputs, outputs) if self.transposed else (outputs, inputs)

    def rows(self, which: slice) -> torch.Tensor:
        if self.transposed:
            return (self.scale * self.a[:, which]).T @ self.b.T
        return self.b[which] @ (self.scale * self.a)


@dataclass(frozen=True)
class Adapter:
    """By the names of the base's tensors."""

    config: dict
    pairs: dict[str, Pair] = field(default_factory=dict)
    replaced: dict[str, Entry] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return self.pairs.keys() | self.replaced.keys()


def invalid(message: str) -> JobError:
    return JobError("adapter_invalid", message)


def read_adapter(folder: Path) -> Adapter:
    """Raises JobError("adapter_invalid") with what of it cannot be merged."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as problem:
        raise invalid(f"adapter_config.json cannot be read: {problem}.") from problem
    _require_plain(config)
    file = folder / "adapter_model.safetensors"
    if not file.exists():
        raise invalid("The adapter has no adapter_model.safetensors.")
    halves: dict[str, dict[str, Entry]] = {}
    replaced = {}
    for name, entry in read_header(file).items():
        if not name.startswith(PREFIX):
            raise invalid(f"The adapter's tensor {name[:200]} is of no weight of the base.")
        own = name.removeprefix(PREFIX)
        if found := PART.match(own):
            halves.setdefault(found["module"], {})[found["part"]] = entry
        elif "lora_" in own:
            raise invalid(f"The adapter's tensor {name[:200]} is not one that can be merged.")
        else:
            replaced[own.replace(".base_layer.", ".")] = entry
    pairs = {f"{module}.weight": _pair(module, parts, config) for module, parts in halves.items()}
    if not pairs and not replaced:
        raise invalid("The adapter has no tensors.")
    return Adapter(config, pairs, replaced)


def _require_plain(config: dict) -> None:
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise invalid("Only LoRA adapters can be merged.")
    for name in REFUSED:
        if config.get(name):
            raise invalid(
                f"adapter_config.json: '{name}' cannot be merged here. Export the adapter alone (merge: false)."
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGING_STARTS):
        message = (
            f"adapter_config.json: an adapter that began with '{start}' stands on changed weights of its "
            "base and cannot be merged here."
        )
        raise invalid(message)


def _pair(module: str, parts: dict[str, Entry], config: dict) -> Pair:
    embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    names = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
    if set(parts) != set(names):
        missing = sorted(set(names) - set(parts)) or sorted(set(parts) - set(names))
        raise invalid(f"The adapter's tensors of {module} are not a pair of A and B: {missing[0]}.")
    a, b = (read_finite(parts[name], f"{module}.{name}") for name in names)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise invalid(f"The adapter's A and B of {module} do not fit each other: {list(a.shape)} and {list(b.shape)}.")
    rank = a.shape[0]
    expected = _by_pattern(config.get("rank_pattern"), module, config.get("r"))
    if rank == 0 or rank != expected:
        raise invalid(f"The adapter's {module} has rank {rank}; adapter_config.json says {expected}.")
    alpha = _by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise invalid(f"adapter_config.json: lora_alpha of {module} is {alpha!r}.")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    # An embedding's weight is [tokens, width], and so lies the other way round than a linear layer's.
    return Pair(a, b, scale, embedding or bool(config.get("fan_in_fan_out")))


def _by_pattern(patterns: dict | None, module: str, otherwise):
    """As peft has it: a pattern is a regular expression for the end of a module's name, the first that fits decides."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"^(.*\.)?({pattern})$", module):
            return value
    return otherwise


def read_finite(entry: Entry, name: str) -> torch.Tensor:
    tensor = entry.whole().float()
    if not bool(tensor.isfinite().all()):
        raise invalid(f"The adapter's {name} has weights that are not numbers (NaN or infinite).")
    return tensor
