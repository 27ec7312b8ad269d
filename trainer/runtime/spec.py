"""The run's specification: `spec.json` as typed values, checked once."""

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from trainer.runtime.errors import JobError
from trainer.runtime.hyperparameters import METHODS, OBJECTIVES, Evaluation, Lora, Options, Training

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Base:
    """The base model: its public id, and the folder of its checkpoint."""

    id: str
    path: str


@dataclass(frozen=True)
class Start:
    """The adapter that training starts from: `path` is a PEFT folder, `sha256` the hash of its weights."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """`sha256`: of the file. `known_as`: the hash by which checkpoints know the rows, if these had another form."""

    path: str
    sha256: str
    known_as: str | None = None

    @property
    def identity(self) -> str:
        """What checkpoints compare the rows by."""
        return self.known_as or self.sha256


@dataclass(frozen=True)
class TokenizerIdentity:
    """The SHA-256 of the base's tokenizer.json and of its chat template, and its end token."""

    sha256: str | None
    chat_template_sha256: str
    eos_token: str | None


@dataclass(frozen=True)
class CheckpointPolicy:
    """`every_seconds` and `every_steps`: when to write a checkpoint; null disables each. The `keep` newest ones stay on
    disk. One that would leave less than `min_free_mb` on the disk is not begun.
    """

    every_seconds: float | None = 30
    every_steps: int | None = None
    keep: int = 2
    min_free_mb: float = 0


@dataclass(frozen=True)
class Candidate:
    """A checkpoint of an earlier attempt. `sha256`: of its manifest."""

    path: str
    sha256: str
    step: int


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What loading and saving a model needs."""

    job_id: str
    base: Base
    method: str
    lora: Lora | None
    start: Start | None
    threads: int
    converters: str
    # Whether control tokens spelled in the text of a row are parsed as control tokens.
    parse_control_tokens: bool = False
    # Whether the projector of a base that reads pictures is trained too.
    projector: bool = False
    # Whether the result is merged into the base's weights: the engine cannot serve adapters of this base.
    merge: bool = False
    # Whether the processes of the run share the base's weights, instead of having all of them each.
    sharded: bool = False

    @property
    def makes_adapter(self) -> bool:
        """Whether the result is an adapter, not a whole model."""
        return self.method != "full" and not self.merge


@dataclass(frozen=True, kw_only=True)
class ImportSpec(ModelSpec):
    """An adapter that was trained elsewhere: its weights are `start`, its shape is `lora`. `linear_modules`: names of
    the base's linear layers that a plain adapter may change. `experts`: whether it may change experts.
    """

    job_id: str = "adopted"
    method: str = "lora"
    lora: Lora
    start: Start
    linear_modules: list[str]
    experts: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandSpec(ModelSpec):
    """A base whose adapters are trained by commands (trainer/cli/commands.py). `lora`: their shape, unless a command
    names another.
    """

    lora: Lora


@dataclass(frozen=True, kw_only=True)
class Spec(ModelSpec):
    """One attempt at a job."""

    attempt: int
    start: Start | None = None
    dataset: Dataset
    training: Training
    options: Options = field(default_factory=Options)
    checkpoint: CheckpointPolicy
    resume_from: list[Candidate]
    evaluation: Evaluation = field(default_factory=Evaluation)
    tokenizer: TokenizerIdentity | None = None
    # What the run may take of a GPU's memory, in MB; null: what there is.
    memory_mb: float | None = None

    def fingerprint(self) -> str:
        """Hash of everything that decides the weights. A checkpoint with another fingerprint belongs to another run."""
        evaluation = self.evaluation
        # Checkpoints older than adapters of experts have none.
        lora = self.lora and {name: value for name, value in asdict(self.lora).items() if name != "experts" or value}
        deciding = [
            self.base.id,
            self.dataset.identity,
            self.method,
            lora,
            asdict(self.training),
        ]
        deciding += [self.start and self.start.sha256]
        # Checkpoints older than this setting come from runs that parse control tokens.
        deciding += [] if self.parse_control_tokens else ["text is text"]
        deciding += [
            evaluation.split,
            evaluation.dataset and evaluation.dataset.identity,
            evaluation.every_steps,
            evaluation.patience,
        ]
        # Checkpoints older than the objectives come from supervised training.
        deciding += [] if self.options == Options() else [asdict(self.options)]
        deciding += ["projector"] if self.projector else []
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def typed(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """An object of these fields. Raises JobError("internal") for one that it does not have."""
    names = {field.name for field in fields(cast(Any, kind))}
    if unknown := sorted(set(values) - names):
        raise JobError("internal", f"spec.json has fields that this trainer does not know: {', '.join(unknown)}.")
    return kind(**values)


@contextmanager
def _problems_as_job_errors() -> Generator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise JobError("internal", f"spec.json cannot be used: {problem!r}.") from problem


def read_import_spec(folder: Path) -> ImportSpec:
    """Reads `folder/spec.json` of an import. Raises JobError("internal") like `read_spec`."""
    with _problems_as_job_errors():
        values = json.loads((folder / "spec.json").read_text())
        parts = {"base": Base, "lora": Lora, "start": Start}
        return typed(ImportSpec, {**values, **{name: typed(kind, values[name]) for name, kind in parts.items()}})


def read_command_spec(folder: Path) -> CommandSpec:
    """Reads `folder/spec.json` of a program that obeys commands. Raises JobError("internal") like `read_spec`."""
    with _problems_as_job_errors():
        values = json.loads((folder / "spec.json").read_text())
        start = typed(Start, values["start"]) if values.get("start") else None
        parts = {"base": typed(Base, values["base"]), "lora": typed(Lora, values["lora"]), "start": start}
        spec = typed(CommandSpec, {**values, **parts})
    if spec.method not in ("lora", "qlora"):
        raise JobError("internal", f"Commands train adapters, not '{spec.method}'.")
    return spec


def read_spec(folder: Path) -> Spec:
    """Reads `folder/spec.json`. Raises JobError("internal") if it is missing, malformed or asks for something
    unknown.
    """
    with _problems_as_job_errors():
        values = json.loads((folder / "spec.json").read_text())
        values["base"] = typed(Base, values["base"])
        values["dataset"] = typed(Dataset, values["dataset"])
        values["lora"] = typed(Lora, values["lora"]) if values.get("lora") else None
        values["training"] = typed(Training, values["training"])
        values["options"] = typed(Options, values.get("options") or {})
        values["start"] = typed(Start, values["start"]) if values.get("start") else None
        values["tokenizer"] = typed(TokenizerIdentity, values["tokenizer"]) if values.get("tokenizer") else None
        evaluation = {**values.get("evaluation", {})}
        if evaluation.get("dataset"):
            evaluation["dataset"] = typed(Dataset, evaluation["dataset"])
        values["evaluation"] = typed(Evaluation, evaluation)
        values["checkpoint"] = typed(CheckpointPolicy, values.get("checkpoint") or {})
        candidates: list[dict[str, Any]] = values.get("resume_from") or []
        values["resume_from"] = [typed(Candidate, candidate) for candidate in candidates]
        spec = typed(Spec, values)
    if spec.method not in METHODS:
        raise JobError("internal", f"This trainer does not know the method '{spec.method}'.")
    if (spec.method == "full") != (spec.lora is None):
        raise JobError("internal", "spec.json must have `lora` for lora and qlora, and for them alone.")
    if spec.options.objective not in OBJECTIVES:
        raise JobError("internal", f"This trainer does not know the objective '{spec.options.objective}'.")
    if spec.training.scheduler not in ("cosine", "linear", "constant"):
        raise JobError("internal", f"This trainer does not know the scheduler '{spec.training.scheduler}'.")
    return spec
