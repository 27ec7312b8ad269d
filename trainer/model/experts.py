"""Experts of mixtures: in memory all experts of a layer are one weight for each of their linear layers.

PEFT trains such a weight as a parameter (`target_parameters`), with a pair of factors for each expert: A [experts *
rank, inputs] expert by expert, and B [outputs, rank * experts] rank by rank. Its own forward pass adds their product to
all experts, rounded to the base's precision; the one here computes for each expert what reaches it, on the side.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.utils import transformers_weight_conversion as conversion
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from trainer.model.model import Model, base_of, decoder_of, factors_of, replace_forward
from trainer.model.skeleton import Skeleton

# The weight [outputs, inputs] of an expert, by the name of its layer and the expert's number.
Weights = Callable[[str, int], torch.Tensor]


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
        first = "gate_up_proj" if module.has_gate else "up_proj"
        factors = {name: factors_by_expert(wrapper) for name, wrapper in self.adapters.items()}

        def layer(name: str, expert: int, states: torch.Tensor) -> torch.Tensor:
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
                hidden = layer(first, expert, states)
                hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
                hidden = layer("down_proj", expert, hidden)
                results.append(module.post_expert_norm(hidden) if module.has_post_expert_norm else hidden)
        outputs = torch.cat(results).float() * weights.reshape(-1)[order, None]
        # The order of the tokens again; sums in it are the same each time.
        return outputs[order.argsort()].view(len(x), chosen, -1).sum(1).to(x.dtype)


def factors_by_expert(wrapper: ParamWrapper) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], float]:
    """A [rank, inputs] and B [outputs, rank] of each expert, and their scale."""
    down, up = factors_of(wrapper)
    experts = wrapper.num_experts
    downs = down.view(experts, -1, down.shape[-1]).unbind()
    ups = up.view(len(up), -1, experts).permute(2, 0, 1).contiguous().unbind()
    return downs, ups, wrapper.scaling["default"]


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
