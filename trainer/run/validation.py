"""Validation during a run: the loss on held-out rows, answers to fixed prompts, the best state and the newest few."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from trainer.data.dataset import Prepared
from trainer.data.packing import Limits
from trainer.data.tokenizer import Tokenizer
from trainer.model.model import Model
from trainer.run import evaluate, snapshots
from trainer.run.objective import Objective, in_batches
from trainer.run.snapshots import Snapshot
from trainer.runtime.distributed import Distributed
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec


class Validation:
    """Evaluates at the steps that the spec asks for. A run resumed with its `state` continues identically."""

    def __init__(
        self,
        spec: Spec,
        model: Model,
        tokenizer: Tokenizer,
        rows: Prepared | None,
        folder: Path,
        objective: Objective,
        limits: Limits,
        protocol: Protocol,
        settings: dict[str, Any],
        distributed: Distributed,
    ) -> None:
        """`settings`: the chat template's variables of the prompts to answer."""
        self.spec, self.model, self.tokenizer, self.rows = spec, model, tokenizer, rows
        self.objective, self.limits, self.protocol, self.settings = objective, limits, protocol, settings
        if rows:
            objective.set_batches(in_batches(rows.rows, spec.training.batch_size))
        self.folder, self.distributed = folder / "snapshots", distributed
        self.best: Snapshot | None = None
        self.recent: list[Snapshot] = []
        self.evaluations_without_improvement = 0
        self.base_answers: list[str] | None = None
        # The step of an interrupted evaluation, and whether the rows were already scored.
        self.unfinished_at: int | None = None
        self.scored = False

    @property
    def enabled(self) -> bool:
        """Whether the spec asks for anything."""
        return bool(self.rows or self.spec.evaluation.prompts or self.spec.evaluation.keep)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {
            "best": self.best and asdict(self.best),
            "kept": [asdict(snapshot) for snapshot in self.recent],
            "without_better": self.evaluations_without_improvement,
            "base_answers": self.base_answers,
            "unfinished_at": self.unfinished_at,
            "scored": self.scored,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint's `state`; an empty one is that of a run that begins."""
        if not state:
            return
        self.best = Snapshot(**state["best"]) if state["best"] else None
        self.recent = [Snapshot(**snapshot) for snapshot in state["kept"]]
        self.evaluations_without_improvement, self.base_answers = state["without_better"], state["base_answers"]
        self.unfinished_at, self.scored = state.get("unfinished_at"), state.get("scored", False)

    def answer_with_base(self, device: torch.device) -> None:
        """Runs before the first step: a fresh adapter changes nothing, so these are the base's answers."""
        if self.spec.evaluation.prompts and self.base_answers is None:
            self.base_answers = self._answers(device)

    def due(self, step: int, steps_per_epoch: int, steps_total: int) -> bool:
        """Whether to evaluate after so many steps."""
        every = self.spec.evaluation.every_steps or steps_per_epoch
        return self.enabled and (step % every == 0 or step == steps_total)

    def evaluate(
        self,
        step: int,
        steps_total: int,
        train_loss: float,
        parameters: dict[str, torch.nn.Parameter],
        device: torch.device,
        interruptible: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        """Returns True if the run should end: the loss has not improved for `patience` evaluations.

        Slow work runs in `interruptible()`, which may interrupt it; the next call for the same step does what is left.
        """
        position = {"step": step, "steps_total": steps_total}
        if self.unfinished_at != step:
            self.unfinished_at, self.scored = step, False
        if not self.scored:
            self._score(position, train_loss, parameters, interruptible)
        with interruptible():
            answers = self._answers(device)
        for prompt, base, answer in zip(self.spec.evaluation.prompts, self.base_answers or [], answers, strict=False):
            self.protocol.emit("sample", answer, **position, prompt=prompt, base=base, answer=answer)
        self.unfinished_at = None
        patience = self.spec.evaluation.patience
        if not self.best or patience is None or self.evaluations_without_improvement < patience or step == steps_total:
            return False
        message = (
            f"The validation loss has not improved for {self.evaluations_without_improvement} evaluations; the "
            f"training ends at step {step}."
        )
        self.protocol.emit("log", message, **position, best_step=self.best.step)
        return True

    def _score(
        self,
        position: dict[str, int],
        train_loss: float,
        parameters: dict[str, torch.nn.Parameter],
        interruptible: Callable[[], AbstractContextManager[None]],
    ) -> None:
        loss: float | None = None
        figures: dict[str, float] = {}
        if self.rows:
            with interruptible():
                scores = self.objective.score(self.model, self.rows, self.limits, self.spec.training.batch_size)
            scores = self.distributed.same(scores)
            loss, figures = scores.loss, scores.figures
            best_loss = self.best.loss if self.best else None
            better = best_loss is None or loss < best_loss
            self.evaluations_without_improvement = 0 if better else self.evaluations_without_improvement + 1
            message = f"Step {position['step']} of {position['steps_total']}: {scores.text}"
            losses = {"validation_loss": loss, "train_loss": train_loss}
            self.protocol.emit("metrics", message, **position, **losses, **figures, best=better)
        exact = figures.get("validation_exact")
        self._snapshot(parameters, position["step"], loss=loss, exact=exact, train_loss=train_loss)
        self.scored = True

    def restore_best(self, parameters: dict[str, torch.nn.Parameter]) -> Snapshot | None:
        """Restores the best state, if there are validation rows to choose it by."""
        if self.best and not snapshots.restore(self.best, parameters):
            self.protocol.emit(
                "warning",
                f"The weights of the best step, {self.best.step}, are damaged on disk; the last ones are used.",
            )
            return None
        return self.best

    def _snapshot(self, parameters: dict[str, torch.nn.Parameter], step: int, **scores: float | None) -> None:
        better, keep = (
            scores["loss"] is not None and self.evaluations_without_improvement == 0,
            self.spec.evaluation.keep,
        )
        if not better and not keep:
            return
        first = self.distributed.is_first
        written = snapshots.save(self.folder, parameters, step, **scores) if first else None
        snapshot = cast(Snapshot, self.distributed.same(written))
        if better:
            self.best = snapshot
        if keep:
            self.recent = [*self.recent, snapshot][-keep:]
        if first:
            snapshots.delete_others(self.folder, [*self.recent, *([self.best] if self.best else [])])

    def _answers(self, device: torch.device) -> list[str]:
        evaluation = self.spec.evaluation
        if not evaluation.prompts:
            return []
        max_length = self.model.config.get_text_config().max_position_embeddings
        return evaluate.generate_answers(
            self.model,
            self.tokenizer,
            evaluation.prompts,
            evaluation.answer_tokens,
            max_length,
            device,
            self.settings,
            self.distributed,
        )
