"""Atomic checkpoints: written to a temporary folder, synced, renamed, and verified by hash before use."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of, sync
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Candidate, Spec


@dataclass
class Totals:
    """Running totals of a run. `epoch_loss` is the sum of the current epoch's loss over `epoch_targets` learned tokens,
    or rows of preferences.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch_loss: float = 0.0
    epoch_targets: int = 0
    ended_early: bool = False


@dataclass(frozen=True)
class Written:
    """A checkpoint on the disk. `sha256`: of its manifest."""

    path: Path
    sha256: str
    size_mb: float


@dataclass
class State:
    """The full state of a run at a step. `row_losses` [rows, 2]: each row's mean loss when it was first and last
    trained on, or NaN. `reference`: what a preference training compares with, or empty. `pass_tokens`: the most of a
    pass.
    """

    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    precision: torch.dtype
    row_losses: torch.Tensor
    reference: torch.Tensor
    pass_tokens: int
    totals: Totals = field(default_factory=Totals)
    validation: dict[str, Any] = field(default_factory=dict[str, Any])


def write(folder: Path, state: State, spec: Spec) -> Written:
    """Writes `folder/step-N`. The returned hash is that of its manifest, which lists the hashes of all other files.

    Raises JobError("storage_full") before anything is written, if that would leave too little space.
    """
    final = folder / f"step-{state.totals.step}"
    temporary = folder / f"step-{state.totals.step}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    moments = {
        f"{kind}.{name}": value
        for name, p in state.parameters.items()
        for kind, value in state.optimizer.state[p].items()
    }
    rows = {"losses": state.row_losses, **({"reference": state.reference} if state.reference.numel() else {})}
    tensors = [*state.parameters.values(), *moments.values(), *rows.values()]
    _require_space(folder, sum(tensor.nbytes for tensor in tensors), spec.checkpoint.min_free_mb)
    temporary.mkdir()
    save_file(
        {name: p.detach().contiguous() for name, p in state.parameters.items()}, temporary / "weights.safetensors"
    )
    save_file(moments, temporary / "optimizer.safetensors")
    save_file(rows, temporary / "rows.safetensors")
    run_fields = {
        "fingerprint": spec.fingerprint(),
        "threads": spec.threads,
        "pass_tokens": state.pass_tokens,
        "precision": str(state.precision).removeprefix("torch."),
    }
    (temporary / "state.json").write_text(
        json.dumps({**run_fields, "totals": asdict(state.totals), "validation": state.validation})
    )
    files = sorted(temporary.iterdir())
    manifest = json.dumps(
        {"step": state.totals.step, "files": {file.name: sha256_of(file) for file in files}}, indent=1
    )
    (temporary / "manifest.json").write_text(manifest)
    for file in [*files, temporary / "manifest.json", temporary]:
        sync(file)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    sync(folder)
    size = sum(file.stat().st_size for file in final.iterdir())
    return Written(final, hashlib.sha256(manifest.encode()).hexdigest(), round(size / 1e6, 3))


def precision_of(spec: Spec) -> torch.dtype | None:
    """The base's precision in the newest readable checkpoint: a run resumed on another machine continues in it."""
    return getattr(torch, str(_stored(spec, "precision")), None)


def pass_tokens_of(spec: Spec) -> int | None:
    """The most tokens of a pass in the newest readable checkpoint; None in those of earlier versions."""
    return _stored(spec, "pass_tokens")


def _stored(spec: Spec, name: str) -> Any:
    """A field of the newest readable checkpoint's state."""
    for candidate in spec.resume_from:
        try:
            return json.loads((Path(candidate.path) / "state.json").read_text()).get(name)
        except (OSError, ValueError, AttributeError):
            continue
    return None


def _require_space(folder: Path, size_bytes: int, min_free_mb: float) -> None:
    left_mb = (shutil.disk_usage(folder).free - size_bytes) / 1e6
    if left_mb < min_free_mb:
        raise JobError("storage_full", f"A checkpoint would leave {left_mb:.0f} MB on the disk.")


def keep_newest(folder: Path, count: int, earlier: Sequence[Candidate] = ()) -> None:
    """Deletes all but the `count` newest checkpoints: of this attempt, then of the `earlier` ones, newest first."""
    steps = sorted(
        (path for path in folder.glob("step-*") if path.suffix != ".tmp"), key=lambda path: int(path.name[5:])
    )
    superseded = [*steps[: -max(count, 1)], *(candidate.path for candidate in earlier[max(count - len(steps), 0) :])]
    for path in superseded:
        shutil.rmtree(path, ignore_errors=True)


def resume(state: State, spec: Spec, protocol: Protocol) -> Candidate | None:
    """Restores the state from the first candidate that is intact and belongs to this run; else leaves it unchanged."""
    for candidate in spec.resume_from:
        path = Path(candidate.path)
        if reason := _flaw(path, candidate.sha256, spec):
            protocol.emit(
                "warning", f"The checkpoint of step {candidate.step} is not used: {reason}.", path=candidate.path
            )
            continue
        weights, moments = load_file(path / "weights.safetensors"), load_file(path / "optimizer.safetensors")
        with torch.no_grad():
            for name, parameter in state.parameters.items():
                parameter.copy_(weights[name])
                kinds = {key[: -len(name) - 1]: value for key, value in moments.items() if key.endswith(f".{name}")}
                # The fused optimizer needs all of its state, also the step count, on the parameter's device.
                state.optimizer.state[parameter] = {kind: value.to(parameter.device) for kind, value in kinds.items()}
        stored = json.loads((path / "state.json").read_text())
        state.totals, state.validation = Totals(**stored["totals"]), stored["validation"]
        rows = load_file(path / "rows.safetensors")
        state.row_losses.copy_(rows["losses"])
        if state.reference.numel():
            state.reference.copy_(rows["reference"])
        return candidate
    if spec.resume_from:
        protocol.emit("warning", "None of the checkpoints can be used; the training starts from the beginning.")
    return None


def _flaw(path: Path, sha256: str, spec: Spec) -> str | None:
    """Why a checkpoint must not be used, or None."""
    try:
        manifest = (path / "manifest.json").read_bytes()
        if hashlib.sha256(manifest).hexdigest() != sha256:
            return "its manifest has another hash than was recorded"
        for name, expected in json.loads(manifest)["files"].items():
            if sha256_of(path / name) != expected:
                return f"{name} is damaged"
        if json.loads((path / "state.json").read_text())["fingerprint"] != spec.fingerprint():
            return "it was made with another base, dataset or configuration"
    except OSError as problem:
        return f"it cannot be read ({problem.strerror})"
    return None
