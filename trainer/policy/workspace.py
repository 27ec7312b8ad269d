"""Adapters that are trained in turn on one base: forward passes, gradients, optimizer steps, and their files."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora.layer import LoraLayer
from safetensors.torch import load_file, save_file

from trainer.data.packing import Limits, pack
from trainer.data.tokenizer import Tokenizer
from trainer.model import gpu
from trainer.model.fast_lora import zero_adapters_skipped
from trainer.model.load import (
    adapter_weights,
    device_and_dtype,
    load_base,
    load_config,
    load_tokenizer,
    trainable,
    with_adapter,
)
from trainer.model.model import Model
from trainer.model.position_mixers import keeps_apart
from trainer.policy.data import Datum, passes, rows_of, sizes_of
from trainer.policy.losses import LOSSES, truncated_weights
from trainer.policy.push import Pusher
from trainer.run import evaluate, memory
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of, sync
from trainer.runtime.spec import Lora, ModelSpec, Start

Tensors = dict[str, torch.Tensor]
# Tokens of a pass that any use has: what the base needs at least is checked with it, before it is loaded.
LEAST_PASS = 512
LOWER = "Shorten prompts and answers, take smaller groups or batches, qlora or a smaller base."


@dataclass
class Adapter:
    """What is kept of an adapter while another is trained. `moments`: the optimizer's, by kind and weight."""

    lora: Lora
    weights: Tensors = field(default_factory=dict[str, torch.Tensor])
    gradients: Tensors = field(default_factory=dict[str, torch.Tensor])
    moments: dict[str, Tensors] = field(default_factory=dict[str, Tensors])


@dataclass(frozen=True)
class LossOptions:
    """`name`: of `LOSSES`. `low`, `high`: how far a ratio may be from 1 on either side. `truncation`: the most that a
    token weighs to correct the probabilities that it was sampled with; None: that is not corrected.
    """

    name: str = "ppo"
    low: float = 0.2
    high: float = 0.2
    truncation: float | None = None


class Workspace:
    """One base in memory, with the adapter that was named last on it. Adapters of one shape take each other's place in
    milliseconds; for one of another shape the base is loaded again.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Loads nothing but the tokenizer. Raises JobError("base_missing")."""
        assert spec.lora, "a workspace trains adapters"
        self.spec = spec
        self.tokenizer: Tokenizer = load_tokenizer(spec)
        self.text_config: Any = load_config(spec).get_text_config()
        self.device, self.dtype = device_and_dtype()
        gpu.select_device(self.device)
        self.adapters: dict[str, Adapter] = {}
        self.active: str | None = None
        self.model: Model | None = None
        self.shape: Lora | None = None
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.optimizer: torch.optim.AdamW | None = None
        self.limits = Limits()
        self.sizes: memory.ModelShape | None = None
        # Tokens and trained tokens of the largest pass that was found to fit.
        self.largest = (0, 0)
        self.predicted = 0.0
        self.pusher: Pusher | None = None

    # Adapters

    def create(self, name: str, lora: Lora | None = None, start: Start | None = None, seed: int = 42) -> int:
        """A fresh adapter whose B is zero, or that of `start`. Returns how many weights are trained. The same seed
        gives the same weights. Raises JobError("internal") for a name that is taken, and what loading raises.
        """
        if name in self.adapters:
            raise JobError("internal", f"There is an adapter '{name}' already.")
        lora = lora or self.spec.lora
        assert lora
        self._put_aside()
        if self.model is None or self.shape != lora:
            self._load(lora, seed)
        # After a load too, which draws other numbers before it comes to the same layers.
        self._reset(seed)
        if start:
            self._fill(adapter_weights(start))
        self.adapters[name], self.active = Adapter(lora), name
        self.optimizer = self._new_optimizer()
        return sum(parameter.numel() for parameter in self.parameters.values())

    def drop(self, name: str) -> None:
        """Forgets an adapter; its files stay. Raises JobError("internal") for an unknown one."""
        self._require(name)
        if self.active == name:
            self.active = None
        del self.adapters[name]

    def activate(self, name: str) -> None:
        """Makes an adapter the one that is computed. Raises JobError("internal") for an unknown one."""
        adapter = self._require(name)
        if self.active == name:
            return
        self._put_aside()
        if self.shape != adapter.lora:
            self._load(adapter.lora, 0)
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(adapter.weights[key])
                parameter.grad = adapter.gradients[key].to(self.device) if key in adapter.gradients else None
        self.optimizer = self._new_optimizer()
        for key, parameter in self.parameters.items():
            kinds = {kind: values[key].to(self.device) for kind, values in adapter.moments.items() if key in values}
            if kinds:
                self.optimizer.state[parameter] = kinds
        self.active = name

    def _require(self, name: str) -> Adapter:
        if name not in self.adapters:
            raise JobError("internal", f"There is no adapter '{name}'.")
        return self.adapters[name]

    def _load(self, lora: Lora, seed: int) -> None:
        # One base at a time has room.
        self.model = self.pusher = None
        spec = replace(self.spec, lora=lora, start=None)
        self._require_room(LEAST_PASS, LEAST_PASS)
        base = load_base(spec, self.device, self.dtype)
        torch.manual_seed(seed)
        self.model, self.shape = with_adapter(base, spec), lora
        self.pusher = Pusher(self.spec, self.model)
        self.parameters = trainable(self.model)
        self.limits = replace(self.limits, documents=None if keeps_apart(self.model) else 1)

    def _require_room(self, tokens: int, targets: int) -> None:
        """Raises JobError("out_of_memory") with the numbers where a pass larger than those before cannot fit."""
        if tokens <= self.largest[0] and targets <= self.largest[1]:
            return
        self.sizes = self.sizes or memory.shape_of(load_config(self.spec))
        predicted = memory.predicted_bytes(self.sizes, self.spec, self.dtype.itemsize, tokens, targets, self.device)
        self.predicted = max(predicted, self.predicted)
        # What earlier passes left in the heap is there for this one.
        available = memory.held_bytes(self.device) + memory.available_bytes(self.device)
        memory.require_fits(predicted, available, LOWER)
        self.largest = (max(tokens, self.largest[0]), max(targets, self.largest[1]))

    def _reset(self, seed: int) -> None:
        assert self.model
        torch.manual_seed(seed)
        for module in self.model.modules():
            if isinstance(module, LoraLayer):
                module.reset_lora_parameters("default", True)
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def _fill(self, weights: Tensors) -> None:
        for name, parameter in self.parameters.items():
            key = name.replace(".default.", ".")
            if key not in weights or weights[key].shape != parameter.shape:
                raise JobError("internal", f"The adapter to start from has no weight {key} of this shape.")
            parameter.copy_(weights[key])

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(list(self.parameters.values()), lr=0.0, weight_decay=0.0, fused=True)

    def _put_aside(self) -> None:
        """Copies what the active adapter has, so that another can take its place."""
        if self.active is None:
            return
        adapter = self.adapters[self.active]
        adapter.weights = {name: p.detach().cpu().clone() for name, p in self.parameters.items()}
        adapter.gradients = {name: p.grad.cpu().clone() for name, p in self.parameters.items() if p.grad is not None}
        adapter.moments = self._moments()
        self.active = None

    def _moments(self) -> dict[str, Tensors]:
        assert self.optimizer
        kinds: dict[str, Tensors] = {}
        for name, parameter in self.parameters.items():
            for kind, value in self.optimizer.state[parameter].items():
                kinds.setdefault(kind, {})[name] = value.detach().cpu().clone()
        return kinds

    # Passes

    def loaded(self) -> Model:
        """The base with the active adapter. Raises JobError("internal") if no adapter is."""
        if self.model is None or self.active is None:
            raise JobError("internal", "Name an adapter first.")
        return self.model

    @torch.no_grad()
    def forward(self, name: str, data: list[Datum], base: bool = False) -> list[list[float]]:
        """The log-probability of each trained token of each datum; with `base` under the base, without the adapter.
        Raises JobError("non_finite_loss").
        """
        self.activate(name)
        model = self.loaded()
        model.eval()
        results: list[list[float]] = [[] for _ in data]
        limits = evaluate.limits_of_scoring(self.limits)
        try:
            with self._without_adapter() if base else nullcontext():
                for groups in passes(data, limits):
                    values = self._log_probabilities(model, data, groups)
                    order = [place for group in groups for place in group]
                    for place, part in zip(order, values.split([data[place].targets for place in order]), strict=True):
                        results[place] = part.tolist()
        finally:
            model.train()
        _require_finite(results)
        return results

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        """Has the model compute what its base does: the B matrices are zero meanwhile, as PEFT's own switch does not
        reach fused layers.
        """
        ups = [parameter for name, parameter in self.parameters.items() if "lora_B" in name]
        kept = [up.detach().clone() for up in ups]
        try:
            for up in ups:
                up.zero_()
            with zero_adapters_skipped(self.loaded()):
                yield
        finally:
            for up, before in zip(ups, kept, strict=True):
                up.copy_(before)

    def forward_backward(self, name: str, data: list[Datum], loss: LossOptions) -> dict[str, Any]:
        """Adds the gradients of the sum of all weighted token losses. Returns that sum, the log-probabilities of each
        datum's trained tokens before the update, the share of tokens that were clipped, and the mean weight that
        truncated importance sampling gave them. Whatever it raises, all gradients since the last step are dropped: some
        passes may have added theirs. Raises JobError("non_finite_loss") for values that are no finite numbers.
        """
        if loss.name not in LOSSES:
            raise JobError("internal", f"There is no loss '{loss.name}'. There are {', '.join(LOSSES)}.")
        self.activate(name)
        try:
            return self._passes_backward(self.loaded(), data, loss)
        except BaseException:
            for parameter in self.parameters.values():
                parameter.grad = None
            raise

    def _passes_backward(self, model: Model, data: list[Datum], loss: LossOptions) -> dict[str, Any]:
        total, clipped, truncated = 0.0, 0, 0.0
        results: list[list[float]] = [[] for _ in data]
        made = passes(data, self.limits)
        if made:
            tokens, targets = zip(*(sizes_of(data, groups) for groups in made), strict=True)
            self._require_room(max(tokens), max(targets))
        for groups in made:
            order = [place for group in groups for place in group]
            lengths = [data[place].targets for place in order]
            new = self._log_probabilities(model, data, groups)
            old = self._given(data, order, "old", new)
            sampled = self._given(data, order, "sampled", old)
            losses = LOSSES[loss.name](new, old, self._joined(data, order, "advantages"), loss.low, loss.high, lengths)
            weights = self._joined(data, order, "weights")
            if loss.truncation is not None:
                corrections = truncated_weights(old, sampled, loss.truncation)
                truncated += float(corrections.sum())
                weights = weights * corrections
            summed = (losses.values * weights).sum()
            summed.backward()
            total += float(summed.detach())
            clipped += int(losses.clipped.sum())
            for place, part in zip(order, new.detach().split(lengths), strict=True):
                results[place] = part.tolist()
        _require_finite(results, total)
        targets = max(1, sum(datum.targets for datum in data))
        return {
            "loss": total,
            "log_probabilities": results,
            "clipped_share": clipped / targets,
            "correction": truncated / targets if loss.truncation is not None else 1.0,
        }

    def _log_probabilities(self, model: Model, data: list[Datum], groups: list[list[int]]) -> torch.Tensor:
        """[trained tokens of the groups], with gradients where these are computed."""
        sequences = [sequence for row in rows_of(data, groups) for sequence in row.sequences]
        packed = pack(sequences, self.device, together=len(groups[0]))
        order = [place for group in groups for place in group]
        if any(data[place].labels is not None for place in order):
            own = packed.next_ids.split([data[place].targets for place in order])
            parts = [
                ids if (labels := data[place].labels) is None else torch.from_numpy(labels).to(self.device)
                for place, ids in zip(order, own, strict=True)
            ]
            packed = replace(packed, next_ids=torch.cat(parts))
        return -evaluate.losses(model, packed)

    def _joined(self, data: list[Datum], order: list[int], name: str) -> torch.Tensor:
        return torch.cat([torch.from_numpy(getattr(data[place], name)) for place in order]).to(self.device)

    def _given(self, data: list[Datum], order: list[int], name: str, default: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of this name; for data without any those of `default`."""
        parts = []
        for place, own in zip(order, default.detach().split([data[place].targets for place in order]), strict=True):
            given = getattr(data[place], name)
            parts.append(own if given is None else torch.from_numpy(given).to(self.device))
        return torch.cat(parts)

    def optim_step(
        self,
        name: str,
        learning_rate: float,
        max_grad_norm: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> float:
        """A step of AdamW (Loshchilov and Hutter, 2017, arXiv 1711.05101) with the gradients since the last one.
        Returns their norm before it is clipped. Raises JobError("non_finite_loss") before the weights change.
        """
        self.activate(name)
        assert self.optimizer
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), max_grad_norm or math.inf))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise JobError(
                "non_finite_loss",
                "The loss stopped being a number. Lower the learning rate "
                f"(it was {learning_rate:g}): a third of it is a good next try.",
                learning_rate=learning_rate,
            )
        for group in self.optimizer.param_groups:
            group |= {"lr": learning_rate, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    # Files

    def save_state(self, name: str, folder: Path, fields: dict[str, Any]) -> tuple[str, float]:
        """Writes weights and moments, with `fields`, so that `load_state` goes on exactly. Returns the hash of the
        manifest, which has those of all files, and the size in MB. Replaces a folder of that name, once all is written.
        """
        self.activate(name)
        assert self.shape
        temporary = folder.with_suffix(".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(
            {key: p.detach().cpu().contiguous() for key, p in self.parameters.items()},
            temporary / "weights.safetensors",
        )
        moments = {f"{kind}.{key}": value for kind, values in self._moments().items() for key, value in values.items()}
        save_file(moments, temporary / "optimizer.safetensors")
        (temporary / "state.json").write_text(json.dumps({"lora": asdict(self.shape), "fields": fields}))
        manifest = json.dumps({"files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}})
        (temporary / "manifest.json").write_text(manifest)
        for file in [*temporary.iterdir(), temporary]:
            sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        sync(folder.parent)
        size = sum(file.stat().st_size for file in folder.iterdir())
        return hashlib.sha256(manifest.encode()).hexdigest(), round(size / 1e6, 3)

    def load_state(
        self, name: str, folder: Path, sha256: str | None = None, optimizer: bool = True
    ) -> dict[str, Any] | None:
        """Makes the adapter what was saved, and returns the saved fields. None, with nothing changed, if the files are
        missing or damaged, or their hash is another. Gradients since the last step are dropped; without `optimizer` the
        moments are, too.
        """
        if _flaw(folder, sha256):
            return None
        stored = json.loads((folder / "state.json").read_text())
        lora = Lora(**stored["lora"])
        weights, moments = load_file(folder / "weights.safetensors"), load_file(folder / "optimizer.safetensors")
        kinds: dict[str, Tensors] = {}
        for key, value in moments.items():
            kind, _, weight = key.partition(".")
            kinds.setdefault(kind, {})[weight] = value
        if self.active == name:
            self.active = None
        self.adapters[name] = Adapter(lora, weights, {}, kinds if optimizer else {})
        self.activate(name)
        return stored["fields"]

    def save_weights(self, name: str, out: Path) -> str:
        """Writes the adapter as PEFT's folder `out/adapter` and as the engine's file `out/adapter.gguf`, whose SHA-256
        is returned. Replaces what is there. Raises JobError("adapter_invalid").
        """
        self.activate(name)
        assert self.pusher
        return self.pusher.write(out)


def _require_finite(log_probabilities: list[list[float]], loss: float = 0.0) -> None:
    """Numbers that clients send may be finite and their products not; JSON has no name for these."""
    if not math.isfinite(loss) or not all(math.isfinite(value) for values in log_probabilities for value in values):
        raise JobError(
            "non_finite_loss",
            "The loss is no finite number: the weights of this adapter, or the numbers that came with the data, are "
            "too large. Go on from an earlier checkpoint with a lower learning rate, or send smaller numbers.",
        )


def _flaw(folder: Path, sha256: str | None) -> bool:
    try:
        manifest = (folder / "manifest.json").read_bytes()
        if sha256 is not None and hashlib.sha256(manifest).hexdigest() != sha256:
            return True
        return any(sha256_of(folder / file) != hash for file, hash in json.loads(manifest)["files"].items())
    except (OSError, ValueError, KeyError):
        return True
