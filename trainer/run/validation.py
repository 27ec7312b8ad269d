"""What is watched while a run goes on: the loss on held-out rows, answers to fixed prompts, the best state so far and
the newest few.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import torch

from trainer.data.dataset import Prepared
from trainer.data.packing import Limits
from trainer.run import evaluate, snapshots
from trainer.run.snapshots import Snapshot
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec


class Validation:
    """Evaluates at the steps that the spec asks for. Its `state` is all that a resumed run needs to go on exactly."""

    def __init__(
        self, spec: Spec, model, tokenizer, rows: Prepared | None, folder: Path, limits: Limits, protocol: Protocol
    ) -> None:
        self.spec, self.model, self.tokenizer, self.rows, self.limits, self.protocol = (
            spec,
            model,
            tokenizer,
            rows,
            limits,
            protocol,
        )
        self.folder = folder / "snapshots"
        self.best: Snapshot | None = None
        self.kept: list[Snapshot] = []
        self.without_better = 0
        self.base_answers: list[str] | None = None
        # Of an evaluation that was broken off: its step, and whether the rows were scored by then.
        self.unfinished_at: int | None = None
        self.scored = False

    @property
    def watches(self) -> bool:
        return bool(self.rows or self.spec.evaluation.prompts or self.spec.evaluation.keep)

    @property
    def state(self) -> dict:
        return {
            "best": self.best and asdict(self.best),
            "kept": [asdict(snapshot) for snapshot in self.kept],
            "without_better": self.without_better,
            "base_answers": self.base_answers,
            "unfinished_at": self.unfinished_at,
            "scored": self.scored,
        }

    def go_on_from(self, state: dict) -> None:
        if not state:
            return
        self.best = Snapshot(**state["best"]) if state["best"] else None
        self.kept = [Snapshot(**each) for each in state["kept"]]
        self.without_better, self.base_answers = state["without_better"], state["base_answers"]
        self.unfinished_at, self.scored = state.get("unfinished_at"), state.get("scored", False)

    def begin(self, device: torch.device) -> None:
        """Before the first step: a fresh adapter does nothing, so these are the base's answers."""
        if self.spec.evaluation.prompts and self.base_answers is None:
            self.base_answers = self._answers(device)

    def due(self, step: int, steps_an_epoch: int, steps_total: int) -> bool:
        every = self.spec.evaluation.every_steps or steps_an_epoch
        return self.watches and (step % every == 0 or step == steps_total)

    def evaluate(
        self,
        step: int,
        steps_total: int,
        train_loss: float,
        parameters: dict[str, torch.nn.Parameter],
        device: torch.device,
        droppable: Callable[[], AbstractContextManager],
    ) -> bool:
        """True where the run should end: the loss has not become better for as many evaluations as the spec has
        patience.

        What takes long stands in `droppable()`, which may break it off; the next call for the same step then does what
        is left.
        """
        where = {"step": step, "steps_total": steps_total}
        if self.unfinished_at != step:
            self.unfinished_at, self.scored = step, False
        if not self.scored:
            self._score(where, train_loss, parameters, device, droppable)
        with droppable():
            answers = self._answers(device)
        for prompt, base, answer in zip(self.spec.evaluation.prompts, self.base_answers or [], answers, strict=False):
            self.protocol.emit("sample", answer, **where, prompt=prompt, base=base, answer=answer)
        self.unfinished_at = None
        patience = self.spec.evaluation.patience
        if not self.rows or patience is None or self.without_better < patience or step == steps_total:
            return False
        message = (
            f"The validation loss has not become better for {self.without_better} evaluations; the "
            f"training ends at step {step}."
        )
        self.protocol.emit("log", message, **where, best_step=self.best.step)
        return True

    def _score(
        self,
        where: dict[str, int],
        train_loss: float,
        parameters: dict[str, torch.nn.Parameter],
        device: torch.device,
        droppable: Callable[[], AbstractContextManager],
    ) -> None:
        loss = exact = None
        if self.rows:
            with droppable():
                loss, exact = evaluate.score(self.model, self.rows, self.limits, device)
            better = self.best is None or loss < self.best.loss
            self.without_better = 0 if better else self.without_better + 1
            message = (
                f"Step {where['step']} of {where['steps_total']}: validation loss {loss:.4f}, {exact:.0%} "
                "of the held-out rows wholly right"
            )
            scores = {"validation_loss": loss, "validation_exact": exact, "train_loss": train_loss}
            self.protocol.emit("metrics", message, **where, **scores, best=better)
        self._set_aside(parameters, where["step"], loss=loss, exact=exact, train_loss=train_loss)
        self.scored = True

    def finish(self, parameters: dict[str, torch.nn.Parameter]) -> Snapshot | None:
        """Puts the best state back, where rows were held out to tell which that is."""
        if self.best and not snapshots.restore(self.best, parameters):
            self.protocol.emit(
                "warning",
                f"The weights of step {self.best.step}, the best, were damaged on disk; the last ones "
                "are taken instead.",
            )
            return None
        return self.best

    def _set_aside(self, parameters: dict[str, torch.nn.Parameter], step: int, **scores: float | None) -> None:
        better, keep = scores["loss"] is not None and self.without_better == 0, self.spec.evaluation.keep
        if not better and not keep:
            return
        snapshot = snapshots.take(self.folder, parameters, step, **scores)
        if better:
            self.best = snapshot
        if keep:
            self.kept = [*self.kept, snapshot][-keep:]
        snapshots.forget_others(self.folder, [*self.kept, *([self.best] if self.best else [])])

    def _answers(self, device: torch.device) -> list[str]:
        watched = self.spec.evaluation
        if not watched.prompts:
            return []
        max_length = self.model.config.max_position_embeddings
        return evaluate.answers(self.model, self.tokenizer, watched.prompts, watched.answer_tokens, max_length, device)
