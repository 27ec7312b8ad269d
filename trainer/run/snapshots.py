"""The trainable weights at one step, set aside: the best so far, and those that a user wants to keep beside the
result.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from trainer.cli.prepare_base import sha256_of


@dataclass(frozen=True)
class Snapshot:
    """`loss` and `exact`: on the validation rows at that step, where there are any. `train_loss`: the mean over the
    epoch so far.
    """

    step: int
    path: str
    sha256: str
    loss: float | None = None
    exact: float | None = None
    # Not in checkpoints of earlier versions.
    train_loss: float | None = None


def take(folder: Path, parameters: dict[str, torch.nn.Parameter], step: int, **scores: float | None) -> Snapshot:
    folder.mkdir(parents=True, exist_ok=True)
    final, aside = folder / f"step-{step}.safetensors", folder / f"step-{step}.tmp"
    save_file({name: parameter.detach().contiguous() for name, parameter in parameters.items()}, aside)
    aside.rename(final)
    return Snapshot(step, str(final), sha256_of(final), **scores)


def restore(snapshot: Snapshot, parameters: dict[str, torch.nn.Parameter]) -> bool:
    """Puts the weights back. False, with nothing changed, where the file is gone or damaged."""
    path = Path(snapshot.path)
    if not path.exists() or sha256_of(path) != snapshot.sha256:
        return False
    weights = load_file(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return True


def forget_others(folder: Path, wanted: list[Snapshot]) -> None:
    """Deletes what this attempt has set aside and nobody wants any more."""
    keep = {snapshot.path for snapshot in wanted}
    for path in folder.glob("step-*"):
        if str(path) not in keep:
            path.unlink(missing_ok=True)
