"""Snapshots: the trainable weights at one step, for the best state so far and for states kept as results of their
own.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from trainer.runtime.files import sha256_of


@dataclass(frozen=True)
class Snapshot:
    """`loss` and `exact`: on the validation rows at that step, if there are any. `train_loss`: the mean over the epoch
    so far.
    """

    step: int
    path: str
    sha256: str
    loss: float | None = None
    exact: float | None = None
    # Checkpoints of earlier versions do not have it.
    train_loss: float | None = None


def save(folder: Path, parameters: dict[str, torch.nn.Parameter], step: int, **scores: float | None) -> Snapshot:
    """Writes the weights, and replaces the file that a killed attempt left for the same step."""
    folder.mkdir(parents=True, exist_ok=True)
    final, temporary = folder / f"step-{step}.safetensors", folder / f"step-{step}.tmp"
    save_file({name: parameter.detach().contiguous() for name, parameter in parameters.items()}, temporary)
    temporary.rename(final)
    return Snapshot(step, str(final), sha256_of(final), **scores)


def restore(snapshot: Snapshot, parameters: dict[str, torch.nn.Parameter]) -> bool:
    """Restores the weights. False, with nothing changed, if the file is missing or damaged."""
    path = Path(snapshot.path)
    if not path.exists() or sha256_of(path) != snapshot.sha256:
        return False
    weights = load_file(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return True


def delete_others(folder: Path, kept: list[Snapshot]) -> None:
    """Deletes this attempt's snapshots that are no longer needed."""
    kept_paths = {snapshot.path for snapshot in kept}
    for path in folder.glob("step-*"):
        if str(path) not in kept_paths:
            path.unlink(missing_ok=True)
