"""Adapters that were trained elsewhere, as PEFT itself reads them: their folder on their base.

A plain adapter adds `alpha / r * B A` to the base's linear layers, and experts, with one rank and alpha. Others become
one where that is exact, and a whole model where it is not.
"""

import json
import math
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import Linear
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils import AuxiliaryTrainingWrapper
from peft.utils.other import get_pattern_key
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer.model import experts
from trainer.model.model import Model, factors_of, linear_of
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.hyperparameters import Lora

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# The adapter before its training, in a folder beside its own files.
INITIAL = "initial"
PAIR = re.compile(r"\.(?P<module>\w+)\.lora_[AB](\.default)?\.weight$")
# What PEFT saves whole beside an adapter of these layers, after a change of the vocabulary, or on request
# (`save_embedding_layers`).
EMBEDDING = re.compile(r"\.(embed_tokens|lm_head)(\.base_layer)?\.weight$")

# These say where the adapter is and how it was trained; the tensors say all that counts of them.
DESCRIPTIVE = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
# What PEFT's reading needs of a configuration besides the options. No other field reaches PEFT: some name modules that
# it imports, or files that it reads.
SELECTING = (
    "exclude_modules",
    "fan_in_fan_out",
    "layers_pattern",
    "layers_to_transform",
    "target_modules",
    "task_type",
)
FOLDED = {"use_rslora", "rank_pattern", "alpha_pattern"}
# Weights by their names: stacked experts, mostly.
PARAMETERS = "target_parameters"
MERGED = {"use_dora", "modules_to_save", "trainable_token_indices", "ensure_weight_tying", "bias", "lora_bias"}

# Beginnings of training that leave the base as it is.
UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
# PEFT takes the adapter's first value out of the base, by the base alone: it does so again when it reads the folder.
REPEATABLE = ("pissa", "olora")
# It needs data or quantized weights that the folder does not have.
UNREPEATABLE = ("corda", "lora_ga", "loftq")
CONVERT = (
    "Save it with save_pretrained(…, path_initial_model_for_weight_conversion=…), or add the folder of the adapter "
    f"before its training to the zip as '{INITIAL}'."
)

# As of `r` (checkAdapter in server/features/fine-tuning/models/adapter-reader/check.ts).
RANK_MAX = 1024
# Longest matching of all its patterns with a base's modules: some regular expressions take exponential time, and only
# one adapter at a time is read.
MATCHING_SECONDS = 10

# Largest difference between the result and PEFT's reading, in nats a token; both are computed in float32.
TOLERANCE = 2e-3


def invalid(message: str) -> JobError:
    """The error of an adapter that cannot be read."""
    return JobError("adapter_invalid", message)


def read_config(folder: Path) -> dict[str, Any]:
    """The adapter's configuration, as PEFT wrote it."""
    return json.loads((folder / CONFIG).read_text())


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that make the adapter more than a plain one. Empty values and PEFT's defaults are no options."""
    defaults = {field.name: field.default for field in fields(LoraConfig)}
    options = {}
    for name, value in config.items():
        if name in DESCRIPTIVE or value in (None, False, [], {}, "") or value == defaults.get(name, ...):
            continue
        # A later version of PEFT may have fields that describe; flags and settings of their own are options.
        if name in defaults or value is True or isinstance(value, list | dict):
            options[name] = value
    return options


def is_plain(folder: Path, linear_modules: list[str]) -> bool:
    """Whether the adapter is plain as it is, for a base with these linear layers. Raises JobError("adapter_invalid") if
    it can be read in no way.
    """
    config = read_config(folder)
    options = options_of(config)
    for name in options:
        if name not in FOLDED | MERGED | {PARAMETERS}:
            raise invalid(f"{CONFIG}: '{name}' can be neither kept in a plain LoRA adapter nor merged into the base.")
    if (folder / INITIAL).exists():
        if options.keys() - FOLDED:
            raise invalid(f"An adapter with {sorted(options.keys() - FOLDED)[0]} cannot have an initial adapter.")
        return False
    start = _start(config)
    if start in UNREPEATABLE:
        raise invalid(f"{CONFIG}: training with init_lora_weights '{start}' began with another base. {CONVERT}")
    if start not in UNCHANGED_BASE and start not in REPEATABLE:
        raise invalid(f"{CONFIG}: init_lora_weights {start!r} is not known here, so its base is unknown. {CONVERT}")
    if options or start not in UNCHANGED_BASE or not isinstance(config["lora_alpha"], int):
        return False
    with safe_open(folder / WEIGHTS, "pt") as tensors:
        pairs = [PAIR.search(name) for name in tensors.keys()]  # noqa: SIM118
    return all(pair and pair["module"] in linear_modules for pair in pairs)


def _start(config: dict[str, Any]) -> object:
    """How the adapter's training began (`init_lora_weights`): by name without its options, or as it is."""
    start = config.get("init_lora_weights", True)
    if not isinstance(start, str):
        return start
    name = start.lower()
    return next((prefix for prefix in (*REPEATABLE, *UNREPEATABLE) if name.startswith(prefix)), name)


@dataclass
class Reading:
    """The adapter on its base, as PEFT computes it. `initial`: by module, what was taken out of the base's weights, as
    its factors A and B with their scale. `replaced`: whether the adapter brought embeddings or a head of its own.
    """

    model: Model
    initial: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict[str, tuple[torch.Tensor, torch.Tensor]]
    )
    replaced: bool = False

    def layers(self) -> dict[str, LoraLayer]:
        """The layers with an adapter, by their names in the model."""
        return {name: module for name, module in self.model.named_modules() if isinstance(module, LoraLayer)}

    def pairs(
        self, linear_modules: list[str], with_experts: bool = False
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]] | None:
        """By module, A [rank, inputs] and B [outputs, rank] whose product is all that is added to the base's weights;
        None if something else is. Those of experts, `with_experts`, have a dimension before these, and the names of
        their modules below the adapters of all experts.
        """
        config = self.model.peft_config["default"]
        if self.replaced:
            return None
        if any(getattr(config, name) for name in MERGED - {"bias", "ensure_weight_tying"}) or config.bias != "none":
            return None
        if any(isinstance(module, AuxiliaryTrainingWrapper) for module in self.model.modules()):
            return None
        mixtures = {id(module) for _, module in experts.expert_modules(self.model)} if with_experts else set[int]()
        pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, layer in self.layers().items():
            owner = experts.below_adapters(name)
            inner = experts.innermost(layer)
            if isinstance(layer, ParamWrapper) and id(inner) in mixtures and name not in self.initial:
                owner = experts.adapter_name(owner, inner, layer.parameter_name)
                pairs[owner] = experts.by_expert(*_factors(layer), layer.num_experts)
            elif owner.rpartition(".")[2] in linear_modules and type(layer) in (Linear, ParamWrapper):
                # PEFT takes some layers for experts, by their names.
                if type(inner) is not torch.nn.Linear or getattr(layer, "parameter_name", "weight") != "weight":
                    return None
                pairs[owner] = self._pair(name, layer)
            else:
                return None
        return pairs

    @torch.no_grad()
    def _pair(self, name: str, layer: LoraLayer) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = _factors(layer)
        if name not in self.initial:
            return a, b
        initial_a, initial_b = self.initial[name]
        return balanced(torch.cat([a, initial_a]), torch.cat([b, -initial_b], dim=1))


def _factors(layer: LoraLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of a layer's adapter, with the scale in B."""
    a, b = factors_of(layer)
    return a.detach().float().clone(), b.detach().float() * layer.scaling["default"]


def balanced(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors A [rank, inputs] and B [outputs, rank] of the same product, of the same rank, without large parts that
    cancel each other: those would be lost in half precision.
    """
    left, left_core = torch.linalg.qr(b.double())
    right, right_core = torch.linalg.qr(a.double().T)
    u, s, v = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
    root = s.sqrt()
    rank = a.shape[0]
    factors = (root[:, None] * (v @ right.T)).float(), ((left @ u) * root).float()
    missing = rank - s.shape[0]
    pad = torch.nn.functional.pad
    return pad(factors[0], (0, 0, 0, missing)), pad(factors[1], (0, missing))


def is_random(folder: Path) -> bool:
    """Whether PEFT begins to read the adapter with random numbers."""
    start = read_config(folder).get("init_lora_weights")
    return isinstance(start, str) and "niter" in start and not (folder / INITIAL).exists()


def read(base: Model, folder: Path, seed: int = 0) -> Reading:
    """Opens the adapter on `base`, whose weights it may change. Raises JobError("adapter_invalid") with the reason."""
    torch.manual_seed(seed)
    config = read_config(folder)
    start = config.get("init_lora_weights", True)
    if _start(config) in REPEATABLE and not (folder / INITIAL).exists():
        reading = Reading(_wrap(base, config, start))
        reading.initial = {name: _factors(layer) for name, layer in reading.layers().items()}
    else:
        reading = Reading(_wrap(base, config, True))
        if (folder / INITIAL).exists():
            reading.replaced = _load(reading.model, folder / INITIAL / WEIGHTS)
            reading.initial = {name: _factors(layer) for name, layer in reading.layers().items()}
            _take_out(reading)
    reading.replaced |= _load(reading.model, folder / WEIGHTS)
    reading.model.eval()
    return reading


def _wrap(base: Model, config: dict[str, Any], start: Any) -> Model:
    options = {name: value for name, value in options_of(config).items() if name in FOLDED | MERGED | {PARAMETERS}}
    selection = {name: config[name] for name in SELECTING if config.get(name) is not None}
    _require_well_formed(options, base)
    try:
        lora = LoraConfig(
            r=config["r"], lora_alpha=config["lora_alpha"], init_lora_weights=start, **selection, **options
        )
        _require_quick(lora, base)
        return cast(Model, get_peft_model(cast(torch.nn.Module, base), lora))
    except re.error as problem:
        raise invalid(f"{CONFIG} has a pattern that is no regular expression: {problem}.") from problem
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as problem:
        raise invalid(f"PEFT cannot read the adapter on this base: {problem}") from problem


def _require_well_formed(options: dict[str, Any], base: Model) -> None:
    """Raises JobError("adapter_invalid") for values of a form that PEFT takes for granted."""

    def is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    def is_rank(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= RANK_MAX

    def is_pattern(value: object, holds: Callable[[object], bool]) -> bool:
        return isinstance(value, dict) and all(holds(item) for item in value.values())

    def are_tokens(value: object) -> bool:
        rows = base.get_input_embeddings().weight.shape[0]
        lists = value.values() if isinstance(value, dict) else [value]
        return all(
            isinstance(tokens, list) and all(type(id) is int and 0 <= id < rows for id in tokens) for tokens in lists
        )

    forms: dict[str, tuple[Callable[[object], bool], str]] = {
        "rank_pattern": (lambda value: is_pattern(value, is_rank), f"patterns with ranks from 1 to {RANK_MAX}"),
        "alpha_pattern": (lambda value: is_pattern(value, is_number), "patterns with numbers"),
        "modules_to_save": (
            lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
            "a list of modules",
        ),
        PARAMETERS: (
            lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
            "a list of parameters",
        ),
        "trainable_token_indices": (are_tokens, "tokens of the base's vocabulary"),
    }
    for name, (holds, form) in forms.items():
        if name in options and not holds(options[name]):
            raise invalid(f"{CONFIG}: '{name}' must be {form}.")


def _require_quick(lora: LoraConfig, base: Model) -> None:
    """Raises JobError("adapter_invalid") if matching the patterns with the base's modules takes too long; re.error if
    one is no regular expression.
    """
    with _limited(MATCHING_SECONDS):
        for name, _ in base.named_modules():
            if lora.target_modules is not None:
                check_target_module_exists(lora, name)
            get_pattern_key(list(lora.rank_pattern or ()), name)
            get_pattern_key(list(lora.alpha_pattern or ()), name)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_) -> None:
        raise invalid(f"{CONFIG}: matching its patterns with the base's modules takes more than {seconds:g} s.")

    # `re` looks for signals while it matches.
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _load(model: Model, file: Path) -> bool:
    """Loads the adapter's weights. Returns whether embeddings or a head were among them that are not the base's own."""
    tensors = load_file(file)
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise invalid("The adapter has weights that are not numbers (NaN or infinite).")
    base = {name: weight for name, weight in model.state_dict().items() if EMBEDDING.search(name) and name in tensors}
    saved = {name: tensors[name] for name in base}

    def is_loaded(name: str) -> bool:
        # The adapter may have it in another precision than the base.
        return torch.equal(base[name].to(saved[name].dtype), saved[name])

    for name, weight in base.items():
        if weight.shape != saved[name].shape:
            raise invalid(
                f"The adapter's {name} has {len(saved[name])} tokens, and the base's vocabulary has {len(weight)}: an "
                "adapter for another vocabulary cannot be kept."
            )
        if is_loaded(name):
            del tensors[name]
    try:
        with experts.named_as_written():
            result = set_peft_model_state_dict(model, tensors)
    except (RuntimeError, ValueError, KeyError) as problem:
        raise invalid(f"The adapter's weights do not fit its configuration on this base: {problem}") from problem
    missing = [name for name in result.missing_keys if ".lora_" in name or ".modules_to_save." in name]
    for names, what in (
        (result.unexpected_keys, "has weights that its configuration does not name"),
        (missing, "lacks"),
    ):
        if names:
            raise invalid(f"The adapter {what}: {names[0][:200]}.")
    # Both are one weight where the base ties them.
    if not all(is_loaded(name) for name in saved):
        raise invalid("The adapter's embeddings and head differ, and this base has one weight for both.")
    return any(name in tensors for name in saved)


@torch.no_grad()
def _take_out(reading: Reading) -> None:
    """Takes the initial adapter out of the base's weights, as its training did."""
    for name, layer in reading.layers().items():
        if type(layer) is not Linear:
            raise invalid(f"The initial adapter changes {name}, which is no linear layer.")
        (a, b), weight = reading.initial[name], linear_of(layer).weight
        weight -= (b @ a).to(weight.dtype)


def is_repeatable(reading: Reading, again: Reading) -> bool:
    """Whether both readings took the same out of the base: PiSSA by iteration only comes near to it."""
    for name, (a, b) in reading.initial.items():
        other_a, other_b = again.initial[name]
        product = b @ a
        if float((product - other_b @ other_a).norm()) > 1e-3 * float(product.norm()):
            return False
    return True


def write_plain(
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], config: dict[str, Any], folder: Path
) -> tuple[Lora, str]:
    """Writes a plain adapter with these pairs, as `Reading.pairs` has them, in float32. Returns its shape and the
    SHA-256 of its weights.

    Its alpha is the configuration's where that is a whole number; B has the rest of the scale. Zeros fill up to the
    largest rank.
    """
    rank = max(a.shape[-2] for a, _ in pairs.values())
    alpha = config["lora_alpha"] if float(config["lora_alpha"]).is_integer() else rank
    tensors = {}
    for name, (a, b) in pairs.items():
        missing = rank - a.shape[-2]
        a = torch.nn.functional.pad(a, (0, 0, 0, missing))
        b = torch.nn.functional.pad(b * (rank / alpha), (0, missing))
        if a.ndim == 3:
            a, b = experts.as_one(a, b)
        tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = a.contiguous(), b.contiguous()
    modules = sorted({name.split(".")[-1] for name, (a, _) in pairs.items() if a.ndim == 2})
    with_experts = any(a.ndim == 3 for a, _ in pairs.values())
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS)
    plain = {"peft_type": "LORA", "r": rank, "lora_alpha": int(alpha), "target_modules": modules}
    (folder / CONFIG).write_text(json.dumps(plain))
    lora = Lora(r=rank, alpha=int(alpha), target_modules=modules, experts=with_experts)
    return lora, sha256_of(folder / WEIGHTS)


def merge(reading: Reading) -> Model:
    """The base with the adapter in its weights. Raises JobError("adapter_invalid") if it cannot be."""
    _untie(reading.model)
    try:
        model = reading.model.merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError, NotImplementedError) as problem:
        raise invalid(f"The adapter cannot be merged into its base: {problem}") from problem
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if (
        output is not None
        and output.weight is not embedding.weight
        and not torch.equal(output.weight, embedding.weight)
    ):
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False
    return model


def _untie(model: Model) -> None:
    """Gives a head that shares the embedding's weights its own: PEFT computes what is added to one of them alone."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) in embeddings:
            module.weight = torch.nn.Parameter(module.weight.detach().clone(), requires_grad=False)


def require_equal(expected: list[list[float]], computed: list[list[float]]) -> None:
    """Raises JobError("adapter_invalid") if the result's log-probabilities are not those of PEFT's reading."""
    differences = [
        abs(a - b) for row, other in zip(expected, computed, strict=True) for a, b in zip(row, other, strict=True)
    ]
    difference = sum(differences) / len(differences)
    if not math.isfinite(difference) or difference > TOLERANCE:
        raise invalid(
            "The adapter cannot be kept exactly: what it became here differs from PEFT's reading of it by "
            f"{difference:.3g} nats a token."
        )
