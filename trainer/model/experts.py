"""Experts of mixtures: in memory all experts of a layer are one weight for each of their linear layers.

PEFT trains such a weight as a parameter (`target_parameters`), with a pair of factors for each expert: A [experts *
rank, inputs] expert by expert, and B [outputs, rank * experts] rank by rank. Its own forward pass adds their product to
all experts, rounded to the base's precision; the one here computes for each expert what reaches it, on the side.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.utils import transformers_weight_conversion as conversion
from safetensors.torch import load_file, save_file
from torch.nn.functional import grouped_mm, linear, pad
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from trainer.model.model import Model, base_of, decoder_of, factors_of, replace_forward
from trainer.model.skeleton import Skeleton

# The weight [outputs, inputs] of an expert, by the name of its layer and the expert's number.
Weights = Callable[[str, int], torch.Tensor]
# Numbers of bfloat16 in 16 bytes: grouped products want rows of such a multiple.
ALIGNED = 8


def stacked(module: torch.nn.Module) -> list[str]:
    """The names of a module's own parameters that are stacked experts. Kernels of convolutions have three dimensions,
    too.
    """
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return []
    parameters = module.named_parameters(recurse=False)
    return [name for name, weight in parameters if weight.ndim == 3 and weight.is_floating_point()]


def expert_modules(model: Model) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of the decoder's layers that have stacked experts, by their names."""
    decoder = {id(module) for _, module in decoder_of(base_of(model)).named_modules()}
    for name, module in base_of(model).named_modules():
        if id(module) in decoder and ".layers." in name and not isinstance(module, LoraLayer) and stacked(module):
            yield name, module


def target_parameters(model: Model) -> list[str]:
    """All stacked experts as PEFT's `target_parameters` names them: `experts.down_proj`."""
    modules = expert_modules(model)
    return sorted({f"{name.rpartition('.')[2]}.{weight}" for name, module in modules for weight in stacked(module)})


@contextmanager
def named_as_given() -> Iterator[None]:
    """Meanwhile PEFT adapts modules of the names that it is given, and reads weights by their names in the model. In
    families whose experts were modules once, it takes `gate_proj` and others for those of the experts, although dense
    layers and shared experts have them too, and `gate` for the router.
    """
    moved, rename = conversion._MOE_TARGET_MODULE_MAPPING, conversion.convert_peft_adapter_state_dict_for_transformers
    before = dict(moved)
    moved.clear()
    conversion.convert_peft_adapter_state_dict_for_transformers = _as_given
    try:
        yield
    finally:
        moved.update(before)
        conversion.convert_peft_adapter_state_dict_for_transformers = rename


def _as_given(
    model: Any, peft_config: Any, adapter_state_dict: dict[str, torch.Tensor], adapter_name: str = ""
) -> dict[str, torch.Tensor]:
    """The weights, for PEFT's function of this signature, which it calls with positions and with names."""
    return adapter_state_dict


@contextmanager
def named_as_written() -> Iterator[None]:
    """Meanwhile PEFT reads the weights of an adapter by their names, if all are names of the model. Else they are names
    of its checkpoint, by whose rules PEFT renames them: Laguna's rule would rename those of the model once more.
    """
    rename = conversion.convert_peft_adapter_state_dict_for_transformers

    def read(
        model: Any, peft_config: Any, adapter_state_dict: dict[str, torch.Tensor], adapter_name: str = "default"
    ) -> dict[str, torch.Tensor]:
        weights = adapter_state_dict
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        modules = {name for name, _ in base.named_modules()}
        named = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in weights if ".lora_" in name}
        return weights if named <= modules else rename(model, peft_config, weights, adapter_name)

    conversion.convert_peft_adapter_state_dict_for_transformers = read
    try:
        yield
    finally:
        conversion.convert_peft_adapter_state_dict_for_transformers = rename


def write_for_peft(file: Path, skeleton: Skeleton, out: Path) -> bool:
    """Writes an adapter's weights to `out` with the checkpoint's names of those modules that PEFT would not find by
    the model's (`named_as_written`). Returns whether there are any.
    """
    rules = [rule for rule in get_model_conversion_mapping(cast(Any, skeleton.model)) if type(rule) is WeightRenaming]

    def read(name: str) -> str:
        return rename_source_key(name, rules, [])[0]

    tensors, renamed = load_file(file), False
    for name in list(tensors):
        module, part, rest = name.removeprefix("base_model.model.").partition(".lora_")
        weight = f"{module}.weight"
        if part and read(weight) != weight and read(stored := skeleton.stored_name(weight)) == weight:
            tensors[f"base_model.model.{stored.removesuffix('.weight')}{part}{rest}"] = tensors.pop(name)
            renamed = True
    if renamed:
        save_file(tensors, out, {"format": "pt"})
    return renamed


def describe_to_peft(model: Model, folder: Path) -> None:
    """Rewrites the configuration of an adapter in `folder` so that PEFT adapts, when it reads it, what it adapted here:
    layers whose names it would take for those of experts become parameters.
    """
    base, file = base_of(model), folder / "adapter_config.json"
    pattern = conversion._MODEL_TO_CONVERSION_PATTERN.get(base.config.model_type)
    moved = conversion._MOE_TARGET_MODULE_MAPPING.get(pattern or "", {})
    adapted = [name for name, module in base.named_modules() if isinstance(module, LoraLayer)]
    parts = [name.split(".")[-2:] for name in adapted if name.rpartition(".")[2] in moved]
    if not parts:
        return
    config = json.loads(file.read_text())
    config["target_modules"] = sorted(set(config["target_modules"]) - moved.keys())
    parameters = {f"{parent}.{leaf}.weight" for parent, leaf in parts}
    config["target_parameters"] = sorted(parameters | set(config["target_parameters"] or ()))
    file.write_text(json.dumps(config, indent=2))


class Experts:
    """A mixture's experts, below the wrappers of their adapters. Tokens [tokens, width] go to experts [tokens, chosen],
    whose outputs are added with weights [tokens, chosen].
    """

    def __init__(self, outer: torch.nn.Module) -> None:
        self.adapters: dict[str, ParamWrapper] = {}
        while isinstance(outer, ParamWrapper):
            self.adapters[outer.parameter_name] = outer
            outer = outer.base_layer
        # Fields of transformers' interface of experts.
        self.module = cast(Any, outer)
        self.is_common = hasattr(outer, "_apply_gate") and hasattr(outer, "has_gate")

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The mixture's output [tokens, width]."""
        if hidden_states.device.type == "cuda" and hidden_states.dtype == torch.bfloat16:
            return self.compute_grouped(hidden_states, top_k_index, top_k_weights)
        return self.compute(hidden_states, top_k_index, top_k_weights, self.weight)

    def weight(self, name: str, expert: int) -> torch.Tensor:
        """An expert's frozen weight [outputs, inputs]."""
        return self.turned(getattr(self.module, name)[expert])

    def turned(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight of an expert as [outputs, inputs]."""
        return weight.T if self.module.is_transposed else weight

    def compute(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, read: Weights) -> torch.Tensor:
        """As `forward`, with frozen weights that `read` returns.

        x [tokens, width]; `index`, each token's experts, and `weights`, their shares: [tokens, experts per token].
        """
        module, chosen = self.module, index.shape[-1]
        # Unbound: the gradient of one expert's part alone would be as large as that of all.
        factors = {
            name: (downs.unbind(), ups.unbind(), scale)
            for name, (downs, ups, scale) in ((name, factors_by_expert(each)) for name, each in self.adapters.items())
        }

        def layer(name: str, states: torch.Tensor, expert: int) -> torch.Tensor:
            weight = read(name, expert)
            result = linear(states.to(weight.dtype), weight)
            if name in factors:
                downs, ups, scale = factors[name]
                # In float32: a bfloat16 sum would swallow what a small adapter adds.
                result = result.float() + linear(linear(states.float(), downs[expert]), ups[expert]) * scale
            return result + getattr(module, f"{name}_bias")[expert] if module.has_bias else result

        order = index.reshape(-1).argsort(stable=True)
        counts = index.reshape(-1).bincount(minlength=module.num_experts).tolist()
        results = []
        for expert, states in enumerate(x[order // chosen].split(counts)):
            if len(states) > 0:
                results.append(self._mlp(states, partial(layer, expert=expert)))
        return _in_order(torch.cat(results), x, order, weights)

    def compute_grouped(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `forward`, with one product for the tokens of all experts: a GPU that gets one for each waits for the CPU
        to launch them.
        """
        module, chosen = self.module, index.shape[-1]
        experts, order = index.reshape(-1).sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(module.num_experts, device=x.device), right=True).int()
        factors = {name: factors_by_expert(wrapper) for name, wrapper in self.adapters.items()}

        def layer(name: str, states: torch.Tensor) -> torch.Tensor:
            weight = getattr(module, name)
            states = states.to(weight.dtype)
            result = grouped_mm(states, weight if module.is_transposed else weight.mT, offs=ends)
            if name in factors:
                downs, ups, scale = factors[name]
                low = grouped_mm(states, _aligned(downs, 1).to(weight.dtype).mT, offs=ends)
                added = grouped_mm(low, _aligned(ups, 2).to(weight.dtype).mT, offs=ends)
                # In float32: a bfloat16 sum would swallow what a small adapter adds.
                result = result.float() + added.float() * scale
            return result + getattr(module, f"{name}_bias")[experts] if module.has_bias else result

        return _in_order(self._mlp(x[order // chosen], layer), x, order, weights)

    def _mlp(self, states: torch.Tensor, layer: Callable[[str, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """What experts make of their tokens; `layer` computes the linear layer of a name."""
        module = self.module
        hidden = layer("gate_up_proj" if module.has_gate else "up_proj", states)
        hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
        hidden = layer("down_proj", hidden)
        return module.post_expert_norm(hidden) if module.has_post_expert_norm else hidden


def _in_order(outputs: torch.Tensor, x: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sums [tokens, width] of weighted outputs in `order`; they are the same each time."""
    weighted = outputs.float() * weights.reshape(-1)[order, None]
    return weighted[order.argsort()].view(len(x), weights.shape[-1], -1).sum(1).to(x.dtype)


def _aligned(factors: torch.Tensor, dimension: int) -> torch.Tensor:
    """Factors whose rank, in that dimension, is filled up with zeros to a multiple of what products want."""
    missing = -factors.shape[dimension] % ALIGNED
    return pad(factors, (0, 0) * (2 - dimension) + (0, missing)) if missing else factors


def factors_by_expert(wrapper: ParamWrapper) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A [experts, rank, inputs] and B [experts, outputs, rank], and their scale."""
    downs, ups = by_expert(*factors_of(wrapper), wrapper.num_experts)
    return downs, ups.contiguous(), wrapper.scaling["default"]


def by_expert(a: torch.Tensor, b: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [experts, rank, inputs] and B [experts, outputs, rank] of PEFT's factors of all experts."""
    return a.reshape(count, -1, a.shape[-1]), b.reshape(len(b), -1, count).permute(2, 0, 1)


def as_one(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """PEFT's factors of all experts, from those of each (`by_expert`)."""
    return a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)


def below_adapters(name: str) -> str:
    """The name of a module without those of the wrappers of its adapters."""
    return re.sub(r"(\.base_layer)+$", "", name)


def innermost(layer: torch.nn.Module | LoraLayer) -> torch.nn.Module:
    """The module below the wrappers of its adapters."""
    while isinstance(layer, LoraLayer):
        layer = layer.base_layer
    return layer


def adapter_name(owner: str, module: torch.nn.Module, weight: str) -> str:
    """The name of the adapter of a stacked weight of a module that is called `owner`, where all have one: PEFT wraps
    one after the other, the first innermost.
    """
    weights = stacked(module)
    return owner + ".base_layer" * (len(weights) - 1 - weights.index(weight))


def outermost(model: Model) -> Iterator[tuple[str, ParamWrapper]]:
    """The wrappers of adapted experts, by their names in the transformers model: the one that is called, of several
    around a module.
    """
    wrappers = {name: module for name, module in base_of(model).named_modules() if isinstance(module, ParamWrapper)}
    inner = {id(module.base_layer) for module in wrappers.values()}
    yield from ((name, module) for name, module in wrappers.items() if id(module) not in inner)


def install(model: Model) -> int:
    """Replaces the forward pass of adapted experts; returns of how many mixtures. Those of a class that does not have
    transformers' common interface keep PEFT's.
    """
    replaced = 0
    for _, wrapper in outermost(model):
        experts = Experts(wrapper)
        if experts.is_common:
            replace_forward(wrapper, experts.forward)
            replaced += 1
    return replaced
