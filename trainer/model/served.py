"""The model as it will be served: the result's weights on the base's own, computed in float32.

Training computes with less: a base in 4 bits (qlora), or weights and products in bfloat16. What a run reports of its
result (validation, answers to prompts, the probe) must not depend on that.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import cast

import torch
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from safetensors import safe_open
from torch.nn.functional import linear

from trainer.model import quantized
from trainer.model.experts import Experts, expert_modules, outermost
from trainer.model.model import Model, base_of, factors_of, replace_forward, restore_forward
from trainer.runtime.spec import ModelSpec

# Weights that are widened at once.
CHUNK_WEIGHTS = 1 << 24


class BaseFiles:
    """Weights of a base as its files have them, by their names in the model."""

    def __init__(self, folder: Path, base: Model) -> None:
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self.files = {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        elif (single := folder / "model.safetensors").exists():
            with safe_open(single, "pt") as tensors:
                self.files = dict.fromkeys(tensors.keys(), single)
        else:
            self.files = {}
        # A head that is the embeddings is stored under one name.
        self.names: dict[str, str] = {}
        stored = {
            id(weight): name for name, weight in base.named_parameters(remove_duplicate=False) if name in self.files
        }
        for name, weight in base.named_parameters(remove_duplicate=False):
            if id(weight) in stored:
                self.names[name] = stored[id(weight)]

    def read(self, name: str, unless: torch.dtype | None = None) -> torch.Tensor | None:
        """A weight in its stored shape and type. None if it is not there, or stored as `unless`."""
        stored = self.names.get(name.replace(".base_layer.", "."))
        if stored is None:
            return None
        with safe_open(self.files[stored], "pt") as tensors:
            if unless == torch.bfloat16 and tensors.get_slice(stored).get_dtype() == "BF16":
                return None
            return tensors.get_tensor(stored)


class Served:
    """Computes a model that is being trained as it will be served, without a second copy of its weights.

    `is_exact`: whether it is computed so in training anyway. `is_cheap`: whether that takes no longer than computing as
    in training. On a GPU only a quantized base is replaced: float32 would
    take many times as long there. The language model of a base that reads pictures stays as it is trained.
    """

    def __init__(self, spec: ModelSpec, base: Model, device: torch.device, dtype: torch.dtype) -> None:
        self.is_quantized = spec.method == "qlora"
        text_only = base.config is base.config.get_text_config()
        narrow = device.type == "cpu" and dtype != torch.float32
        self.is_exact = not (text_only and (self.is_quantized or narrow))
        # A base in 4 bits is widened in training too.
        self.is_cheap = self.is_exact or (self.is_quantized and device.type == "cpu")
        self.files = BaseFiles(Path(spec.base.path), base) if not self.is_exact and spec.method != "full" else None

    @contextmanager
    def computing(self, model: Model) -> Iterator[None]:
        """Meanwhile `model` computes the served model, slower and without gradients."""
        if self.is_exact:
            yield
            return
        restore, head = [], vars(model).pop("body_and_head", None)
        mixtures = self._mixtures(model)
        inside = {id(part) for mixture in mixtures.values() for part in (*mixture.adapters.values(), mixture.module)}
        try:
            for name, module in base_of(model).named_modules():
                restore.append((module, restore_forward(module), {}))
                if name in mixtures:
                    replace_forward(module, partial(self._mixed, name, mixtures[name]))
                elif id(module) not in inside:
                    self._replace(name, module, restore[-1][2])
            yield
        finally:
            for module, forward, parameters in restore:
                restore_forward(module)
                if forward is not None:
                    replace_forward(module, forward)
                for parameter, data in parameters.items():
                    parameter.data = data
            if head is not None:
                model.body_and_head = head

    def _replace(self, name: str, module: torch.nn.Module, widened: dict) -> None:
        """Gives a module a forward pass in float32, or float32 parameters, whose former data go into `widened`."""
        if isinstance(module, ParamWrapper):
            # Its own pass, of experts in float32.
            return
        if isinstance(module, LoraLayer):
            replace_forward(module, partial(self._adapted, name, module))
        elif quantized.is_quantized(module) or (
            isinstance(module, torch.nn.Linear) and type(module).forward is torch.nn.Linear.forward
        ):
            replace_forward(module, partial(self._linear, name, module))
        elif isinstance(module, torch.nn.Embedding):
            replace_forward(module, partial(self._embedded, name, module))
        elif not name.endswith((".lora_A", ".lora_B")):
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.dtype != torch.float32:
                    widened[parameter] = parameter.data
                    parameter.data = self._original(f"{name}.{own}", parameter).float()

    def _mixtures(self, model: Model) -> dict[str, Experts]:
        """Experts that are widened one at a time, by the names of the modules that are called."""
        called = {name: Experts(wrapper) for name, wrapper in outermost(model)}
        wrapped = {id(mixture.module) for mixture in called.values()}
        bare = {name: Experts(module) for name, module in expert_modules(model) if id(module) not in wrapped}
        return {name: mixture for name, mixture in (called | bare).items() if mixture.is_common}

    def _mixed(
        self,
        name: str,
        mixture: Experts,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        weights: dict[str, torch.Tensor] = {}

        def read(weight: str, expert: int) -> torch.Tensor:
            if weight not in weights:
                weights[weight] = self._original(f"{name}.{weight}", getattr(mixture.module, weight))
            return mixture.turned(weights[weight][expert].float())

        return mixture.compute(hidden_states.float(), top_k_index, top_k_weights, read)

    def _original(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """A frozen weight as the base's files have it, where it was rounded for the training."""
        if self.files is None or weight.dtype == torch.float32:
            return weight.detach()
        stored = self.files.read(name, unless=weight.dtype)
        return weight.detach() if stored is None else stored.to(weight.device)

    def _weight(self, name: str, module: torch.nn.Linear) -> torch.Tensor:
        if not quantized.is_quantized(module):
            return self._original(f"{name}.weight", module.weight)
        stored = self.files.read(f"{name}.weight") if self.files else None
        return quantized.dequantize(module.weight) if stored is None else stored.to(module.weight.device)

    def _linear(self, name: str, module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        weight, x = self._weight(name, module), x.float()
        if weight.dtype == torch.float32:
            result = linear(x, weight)
        else:
            rows = max(1, CHUNK_WEIGHTS // module.in_features)
            result = torch.cat([linear(x, part.float()) for part in weight.split(rows)], dim=-1)
        return result if module.bias is None else result + self._original(f"{name}.bias", module.bias).float()

    def _adapted(self, name: str, module: LoraLayer, x: torch.Tensor) -> torch.Tensor:
        base = cast(torch.nn.Linear, module.get_base_layer())
        result, x = self._linear(f"{name}.base_layer", base, x), x.float()
        for adapter in module.active_adapters:
            down, up = factors_of(module, adapter)
            result = result + linear(linear(x, down), up) * module.scaling[adapter]
        return result

    def _embedded(self, name: str, module: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        weight, padding = module.weight.data, module.padding_idx
        tokens, places = ids.unique(return_inverse=True)
        try:
            # The rows that are read, by the module's own pass: some families scale their embeddings.
            rows = self._original(f"{name}.weight", weight)[tokens].float()
            module.weight.data, module.padding_idx = rows, None
            return type(module).forward(module, places)
        finally:
            module.weight.data, module.padding_idx = weight, padding


def as_served(model: Model) -> AbstractContextManager[None]:
    """Meanwhile a model of `load_model` computes as it will be served. Any other computes as it is."""
    served = getattr(model, "served", None)
    return served.computing(model) if served else nullcontext()


def drafting(model: Model) -> AbstractContextManager[None]:
    """Meanwhile a model drafts what it will answer when it is served, in the faster way."""
    served = getattr(model, "served", None)
    return served.computing(model) if served and served.is_cheap else nullcontext()
