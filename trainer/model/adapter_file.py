"""Reads PEFT's file of an adapter: what it adds to which weight of its base."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.model.experts import below_adapters, by_expert, expert_modules, stacked
from trainer.model.model import Model

PREFIX = "base_model.model."


@dataclass(frozen=True)
class Pair:
    """Factors of what is added to a weight, float32: b [outputs, rank] times a [rank, inputs], with its scale in b.
    Experts that are one weight have a dimension before these.
    """

    a: torch.Tensor
    b: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's."""
        return (*self.b.shape[:-1], self.a.shape[-1])


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of PEFT's adapter in `folder`."""
    return json.loads((folder / "adapter_config.json").read_text())


def read_pairs(folder: Path, base: Model) -> tuple[dict[str, Any], dict[str, Pair]]:
    """The configuration of PEFT's adapter in `folder`, and its pairs by the names of the weights in `base`, whose data
    are not read.
    """
    from safetensors.torch import load_file

    config = read_config(folder)
    return config, pairs_of(config, load_file(folder / "adapter_model.safetensors"), base)


def pairs_of(config: dict[str, Any], stored: dict[str, torch.Tensor], base: Model) -> dict[str, Pair]:
    """The pairs of PEFT's tensors, by the names of the weights in `base`."""
    tensors = {name: each.float() for name, each in stored.items()}
    experts = dict(expert_modules(base))
    pairs = {}
    for name, tensor in tensors.items():
        module = name.removeprefix(PREFIX)
        if name.endswith(".lora_A.weight"):
            module = module.removesuffix(".lora_A.weight")
            other = tensors[name.replace(".lora_A.", ".lora_B.")]
            owner = below_adapters(module)
            if owner in experts:
                weight = _wrapped(module, experts[owner], config)
                scale = scale_of(config, f"{owner}.{weight}")
                pairs[f"{owner}.{weight}"] = _stack(tensor, other * scale, experts[owner])
            else:
                pairs[f"{module}.weight"] = Pair(tensor, other * scale_of(config, module))
        elif name.endswith(".lora_embedding_A"):
            # An embedding's weight is [tokens, width], which PEFT's factors have the other way round.
            module = module.removesuffix(".lora_embedding_A")
            other = tensors[name.replace(".lora_embedding_A", ".lora_embedding_B")]
            pairs[f"{module}.weight"] = Pair(other.mT, tensor.mT * scale_of(config, module))
    return pairs


def _wrapped(module: str, experts: torch.nn.Module, config: dict[str, Any]) -> str:
    """Which of the experts' weights an adapter is of: PEFT wraps one after the other, the first innermost."""
    targets = config.get("target_parameters") or ()
    owner = below_adapters(module)
    weights = [
        name
        for name, _ in experts.named_parameters(recurse=False)
        if any(f".{owner}.{name}".endswith(f".{target}") for target in targets)
    ]
    return weights[-1 - module.count(".base_layer")]


def _stack(a: torch.Tensor, b: torch.Tensor, experts: torch.nn.Module) -> Pair:
    """The pair of a stacked weight in the weight's own form, from PEFT's factors of all experts."""
    count = len(getattr(experts, stacked(experts)[0]))
    downs, ups = by_expert(a, b, count)
    # PEFT asks the same: some families keep an expert as [inputs, outputs].
    return Pair(ups.mT, downs.mT) if getattr(experts, "is_transposed", False) else Pair(downs, ups)


def scale_of(config: dict[str, Any], name: str) -> float:
    """By how much an adapter multiplies the product of its factors of a module or parameter."""
    rank, alpha = rank_of(config, name), by_pattern(config.get("alpha_pattern"), name, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def rank_of(config: dict[str, Any], name: str) -> int:
    """The rank of an adapter's factors of a module or parameter."""
    return by_pattern(config.get("rank_pattern"), name, config["r"])


def by_pattern(patterns: dict[str, Any] | None, name: str, otherwise: Any) -> Any:
    """Follows PEFT: patterns are regular expressions for the end of a name, and the first match counts."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"^(.*\.)?({pattern})$", name):
            return value
    return otherwise
