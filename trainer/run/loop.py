"""The training loop: one packed, padding-free forward and backward pass for each batch, or a few where the batch is
large.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from trainer.data.dataset import Prepared, Row
from trainer.data.packing import Limits, pack, split
from trainer.model.attention import packable
from trainer.model.cuda_graphs import Recorded, worthwhile
from trainer.model.load import trainable
from trainer.run import checkpoint
from trainer.run.checkpoint import State
from trainer.run.evaluate import losses
from trainer.run.progress import Estimate
from trainer.run.schedule import learning_rate, order_of
from trainer.run.validation import Validation
from trainer.runtime import memory
from trainer.runtime.distributed import Ranks
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Protocol, StopAsked
from trainer.runtime.spec import Spec

# A checkpoint may cost this share of the run's time; where writing is slow, checkpoints become rarer than was asked.
CHECKPOINT_SHARE = 0.02
GIVE_BACK_STEPS = 10
# What of a GPU's memory passes are made for. By the whole of it, not by what is free: a resumed run makes the same
# ones.
GPU_SHARE = 0.8


def limits_of(config, spec: Spec, device: torch.device) -> Limits:
    """A model whose documents cannot share a sequence takes them one by one. A GPU is given as much at once as its
    memory holds.
    """
    documents = None if packable(config) else 1
    if device.type == "cpu":
        return Limits(documents=documents)
    shape, most = memory.shape_of(config), torch.cuda.get_device_properties(device).total_memory * GPU_SHARE
    for tokens in (32768, 16384, 8192, 4096):
        targets = tokens if memory.head_in_pieces(shape, spec) else Limits.targets
        if memory.predicted_bytes(shape, spec, 2, tokens, targets, device) < most:
            return Limits(tokens, targets, documents)
    return Limits(2048, 2048, documents)


class Loop:
    """Trains `model` on `data` from wherever the newest good checkpoint stands. `totals` tells how far it is.

    `predicted`: the bytes of memory that the run should keep to.
    """

    def __init__(
        self,
        spec: Spec,
        model,
        tokenizer,
        data: Prepared,
        held_out: Prepared | None,
        folder: Path,
        device: torch.device,
        protocol: Protocol,
        ranks: Ranks | None = None,
        predicted: float = math.inf,
    ) -> None:
        training = spec.training
        self.spec, self.model, self.data, self.device, self.protocol = spec, model, data, device, protocol
        self.folder = folder / "checkpoints"
        self.ranks, self.predicted = ranks or Ranks(), predicted
        self.parameters = trainable(model)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=training.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=training.weight_decay,
            fused=True,
        )
        self.limits = limits_of(model.config, spec, device)
        self.places = {row.number: index for index, row in enumerate(data.rows)}
        self.steps_an_epoch = math.ceil(len(data.rows) / training.batch_size)
        self.steps_total = self.steps_an_epoch * training.epochs
        first = [
            [sequence for row in self.batch(step) for sequence in row.sequences]
            for step in range(min(8, self.steps_an_epoch))
        ]
        recordable = worthwhile(model, first, self.limits, device)
        self.recorded = Recorded(model, list(self.parameters.values()), device) if recordable else None
        self.validation = Validation(spec, model, tokenizer, held_out, folder, self.limits, protocol)
        precision = model.get_input_embeddings().weight.dtype
        self.state = State(self.parameters, self.optimizer, precision, torch.full((len(data.rows), 2), math.nan))
        self.resumed = checkpoint.resume(self.state, spec, protocol)
        self.totals = self.state.totals
        self.validation.go_on_from(self.state.validation)
        self.estimate = Estimate(data.tokens * training.epochs, self.totals.tokens)
        self.written_at = time.monotonic()
        self.written_step = self.totals.step
        self.write_seconds = 0.0

    def run(self) -> bool:
        """Trains to the end, and leaves a checkpoint there. False when it was asked to stop before."""
        try:
            return self._train()
        except StopAsked:
            # What was dropped is done again, the same, when the run goes on from the last step that was finished.
            if self.totals.step > self.written_step:
                self._checkpoint()
            return False

    def _droppable(self) -> AbstractContextManager:
        """Around what changes nothing that lasts. A step beside busy programs takes long; several processes must end
        after the same one.
        """
        return self.protocol.droppable() if self.device.type == "cpu" and self.ranks.count == 1 else nullcontext()

    def _train(self) -> bool:
        if self.ranks.first:
            with self._droppable():
                self.validation.begin(self.device)
        if self.validation.unfinished_at == self.totals.step and self.totals.step > 0:
            self.totals.ended_early = self._evaluate()
        while self.totals.step < self.steps_total and not self.totals.ended_early:
            started, started_cpu = time.monotonic(), time.process_time()
            batch = self.batch(self.totals.step)
            loss, norm, rate = self.step(batch)
            if self.totals.step % GIVE_BACK_STEPS == 0:
                memory.give_back(self.predicted, self.device)
            seconds = time.monotonic() - started
            self._count(batch, loss, seconds, time.process_time() - started_cpu)
            self._report(batch, loss, norm, rate, seconds)
            if self.validation.due(self.totals.step, self.steps_an_epoch, self.steps_total):
                self.totals.ended_early = self._evaluate()
            if self.ranks.any(self.protocol.stop_asked, self.device):
                self._checkpoint()
                return False
            if self.totals.step == self.steps_total or self.totals.ended_early or self._checkpoint_due():
                self._checkpoint()
        return True

    def _evaluate(self) -> bool:
        evaluate = self.validation.evaluate
        ended = self.ranks.first and evaluate(
            self.totals.step, self.steps_total, self.train_loss, self.parameters, self.device, self._droppable
        )
        return self.ranks.of_first(ended, self.device)

    @property
    def train_loss(self) -> float:
        """Mean loss of a learned token over the last epoch."""
        return self.totals.epoch_loss / max(1, self.totals.epoch_targets)

    def batch(self, step: int) -> list[Row]:
        epoch, index = divmod(step, self.steps_an_epoch)
        size = self.spec.training.batch_size
        order = order_of(epoch, len(self.data.rows), self.spec.training.seed)
        return [self.data.rows[i] for i in order[index * size : (index + 1) * size]]

    def step(self, batch: list[Row]) -> tuple[float, float, float]:
        """One optimizer step. Returns the mean loss of a learned token, the gradient's norm before clipping, and the
        rate used.
        """
        training, step = self.spec.training, self.totals.step
        # Dropout's noise as a function of the step: a resumed run draws the same without any state kept.
        torch.manual_seed(training.seed * 1_000_003 + step + self.ranks.rank * 7_919_000_000_003)
        rate = learning_rate(step, self.steps_total, training.learning_rate, training.warmup_ratio, training.scheduler)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self._droppable():
            loss = self.gradients(batch)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), training.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise JobError(
                "non_finite_loss",
                f"The loss stopped being a number at step {step + 1}. Lower the learning rate (it was "
                f"{training.learning_rate:g}): "
                "a third of it is a good next try.",
                step=step + 1,
                learning_rate=training.learning_rate,
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm, rate

    def gradients(self, batch: list[Row]) -> float:
        """Adds the batch's gradients up and returns its loss: the mean over every learned token, however the batch is
        split.
        """
        sequences = [sequence for row in batch for sequence in row.sequences]
        targets = sum(sequence.targets for sequence in sequences)
        mine = self.ranks.share([len(sequence.ids) for sequence in sequences])
        told: list[torch.Tensor] = []
        for group in split([sequences[index] for index in mine], self.limits):
            if self.recorded:
                each = self.recorded.gradients(pack(group, self.device, share=False), targets)
            else:
                each = losses(self.model, pack(group, self.device))
                (each.sum() / targets).backward()
            told += [part.sum() for part in each.detach().split([sequence.targets for sequence in group])]
        # Read at the end and at once: each reading waits for all that a GPU has still to do.
        sums = torch.stack(told).tolist() if told else []
        sums = self.ranks.add_up(list(self.parameters.values()), sums, mine, len(sequences))
        return self._share_out(batch, sums) / targets

    def _share_out(self, batch: list[Row], sums: list[float]) -> float:
        """Notes each row's mean loss, from the sums of its sequences in order; returns the sum of all."""
        rest = iter(sums)
        for row in batch:
            mean = sum(next(rest) for _ in row.sequences) / row.targets
            mine = self.state.row_losses[self.places[row.number]]
            mine[1] = mean
            if mine[0].isnan():
                mine[0] = mean
        return sum(sums)

    def _count(self, batch: list[Row], loss: float, seconds: float, cpu_seconds: float) -> None:
        totals, tokens = self.totals, sum(row.tokens for row in batch)
        if totals.step % self.steps_an_epoch == 0:
            totals.epoch_loss, totals.epoch_targets = 0.0, 0
        targets = sum(row.targets for row in batch)
        totals.step += 1
        totals.tokens += tokens
        totals.seconds += seconds
        totals.epoch_loss += loss * targets
        totals.epoch_targets += targets
        self.estimate.step(tokens, seconds, cpu_seconds if self.device.type == "cpu" else None)

    def _report(self, batch: list[Row], loss: float, norm: float, rate: float, seconds: float) -> None:
        totals = self.totals
        if not self.protocol.metrics_due(last=totals.step == self.steps_total):
            return
        where = {"step": totals.step, "steps_total": self.steps_total}
        epoch = (totals.step - 1) // self.steps_an_epoch + 1
        speed = round(sum(row.tokens for row in batch) / seconds, 1)
        self.protocol.emit(
            "metrics",
            f"Step {totals.step} of {self.steps_total}: loss {loss:.4f}",
            **where,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            tokens_per_second=speed,
            tokens=totals.tokens,
            grad_norm=norm,
        )
        progress, left = self.estimate.progress(), self.estimate.seconds_left()
        message = f"{progress:.0%} done" + ("" if left is None else f", about {left:.0f} s left")
        self.protocol.emit("progress", message, **where, progress=progress, current_epoch=epoch, seconds_left=left)

    def _checkpoint_due(self) -> bool:
        policy = self.spec.checkpoint
        if policy.every_steps and self.totals.step % policy.every_steps == 0:
            return True
        if policy.every_seconds is None:
            return False
        return time.monotonic() - self.written_at >= max(policy.every_seconds, self.write_seconds / CHECKPOINT_SHARE)

    def _checkpoint(self) -> None:
        if not self.ranks.first:
            return
        started = time.monotonic()
        self.state.validation = self.validation.state
        written = checkpoint.write(self.folder, self.state, self.spec)
        self.written_at = time.monotonic()
        self.written_step = self.totals.step
        self.write_seconds = self.written_at - started
        step = self.totals.step
        message = f"Checkpoint at step {step} of {self.steps_total}"
        self.protocol.emit(
            "checkpoint", message, step=step, path=str(written.path), sha256=written.sha256, size_mb=written.size_mb
        )
        checkpoint.keep_newest(self.folder, self.spec.checkpoint.keep)
