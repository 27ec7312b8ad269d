"""The run's specification: `spec.json` as typed values, checked once."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from trainer.runtime.errors import JobError

METHODS = ("lora", "qlora", "full")


@dataclass(frozen=True)
class Base:
    id: str
    path: str


@dataclass(frozen=True)
class Start:
    """The adapter that a run goes on from: `path` is a PEFT folder, `sha256` that of its weights."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Dataset:
    path: str
    sha256: str


@dataclass(frozen=True)
class Frozen:
    """Of the base: the SHA-256 of its tokenizer.json and of its chat template, and its end token."""

    sha256: str | None
    chat_template_sha256: str
    eos_token: str | None


@dataclass(frozen=True)
class Lora:
    r: int
    alpha: float
    dropout: float
    target_modules: list[str] | str


@dataclass(frozen=True)
class Training:
    epochs: int
    batch_size: int
    learning_rate: float
    warmup_ratio: float
    scheduler: str
    seed: int
    max_length: int
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class Evaluation:
    """What is watched while the run goes on.

    `split`: the share of the rows that is held out; or `dataset`: rows of their own. `every_steps`: how often to
    evaluate, null for the
    end of each epoch. `patience`: evaluations without a better loss after which the run ends, null for never.
    `prompts`: conversations
    to answer at each evaluation. `keep`: how many of the newest evaluated states become results of their own.
    """

    split: float = 0.0
    dataset: Dataset | None = None
    every_steps: int | None = None
    patience: int | None = None
    prompts: list[list[dict]] = field(default_factory=list)
    answer_tokens: int = 64
    keep: int = 0


@dataclass(frozen=True)
class CheckpointPolicy:
    """`every_seconds` and `every_steps` each ask for a checkpoint; null asks for none. `keep` newest ones stay on
    disk.
    """

    every_seconds: float | None = 30
    every_steps: int | None = None
    keep: int = 2


@dataclass(frozen=True)
class Candidate:
    path: str
    sha256: str
    step: int


@dataclass(frozen=True)
class Spec:
    job_id: str
    attempt: int
    base: Base
    dataset: Dataset
    method: str
    lora: Lora | None
    training: Training
    threads: int
    checkpoint: CheckpointPolicy
    resume_from: list[Candidate]
    converters: str
    evaluation: Evaluation = field(default_factory=Evaluation)
    start: Start | None = None
    tokenizer: Frozen | None = None
    # Whether control tokens that the text of a row spells become such.
    parse_control_tokens: bool = False

    def fingerprint(self) -> str:
        """Hash of all that decides the weights. A checkpoint of another fingerprint belongs to another run."""
        watched = self.evaluation
        deciding = [
            self.base.id,
            self.dataset.sha256,
            self.method,
            self.lora and asdict(self.lora),
            asdict(self.training),
        ]
        deciding += [self.start and self.start.sha256]
        # Checkpoints of before there was the choice are of runs that parse.
        deciding += [] if self.parse_control_tokens else ["text is text"]
        deciding += [watched.split, watched.dataset and watched.dataset.sha256, watched.every_steps, watched.patience]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def _typed(kind: type, values: dict):
    names = {each.name for each in fields(kind)}
    if unknown := sorted(set(values) - names):
        raise JobError("internal", f"spec.json has fields that this trainer does not know: {', '.join(unknown)}.")
    return kind(**values)


def read_spec(folder: Path) -> Spec:
    """Reads `folder/spec.json`. Raises JobError("internal") where it is missing, malformed or asks for what is not
    there.
    """
    try:
        values = json.loads((folder / "spec.json").read_text())
        values["base"] = _typed(Base, values["base"])
        values["dataset"] = _typed(Dataset, values["dataset"])
        values["lora"] = _typed(Lora, values["lora"]) if values.get("lora") else None
        values["training"] = _typed(Training, values["training"])
        values["start"] = _typed(Start, values["start"]) if values.get("start") else None
        values["tokenizer"] = _typed(Frozen, values["tokenizer"]) if values.get("tokenizer") else None
        evaluation = {**values.get("evaluation", {})}
        if evaluation.get("dataset"):
            evaluation["dataset"] = _typed(Dataset, evaluation["dataset"])
        values["evaluation"] = _typed(Evaluation, evaluation)
        values["checkpoint"] = _typed(CheckpointPolicy, values.get("checkpoint") or {})
        values["resume_from"] = [_typed(Candidate, candidate) for candidate in values.get("resume_from") or []]
        spec = _typed(Spec, values)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise JobError("internal", f"spec.json cannot be used: {problem!r}.") from problem
    if spec.method not in METHODS:
        raise JobError("internal", f"This trainer does not know the method '{spec.method}'.")
    if (spec.method == "full") != (spec.lora is None):
        raise JobError("internal", "spec.json must have `lora` for lora and qlora, and for them alone.")
    if spec.training.scheduler not in ("cosine", "linear", "constant"):
        raise JobError("internal", f"This trainer does not know the scheduler '{spec.training.scheduler}'.")
    return spec
