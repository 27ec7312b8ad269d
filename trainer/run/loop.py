"""The training loop: one packed, padding-free forward and backward pass for each batch, or a few for a large batch."""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.data.dataset import Prepared, Row
from trainer.data.packing import Limits, split
from trainer.data.tokenizer import Tokenizer
from trainer.model.cuda_graphs import CudaGraphs, worth_capturing
from trainer.model.load import trainable
from trainer.model.model import Model
from trainer.model.position_mixers import keeps_apart
from trainer.model.served import as_served
from trainer.model.vision import Features
from trainer.run import checkpoint, evaluate, memory
from trainer.run.checkpoint import State
from trainer.run.objective import Preferences, objective_of
from trainer.run.progress import Estimate
from trainer.run.schedule import learning_rate, order_of
from trainer.run.validation import Validation
from trainer.runtime.distributed import Distributed
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Protocol, StopRequested
from trainer.runtime.spec import Spec

# Checkpoints may take this share of the run's time; with slow writes they become rarer than the spec asks for.
CHECKPOINT_SHARE = 0.02
TRIM_STEPS = 10
# The rate of weights that are trained whole beside an adapter, as a share of the adapter's: as the default rates of
# full training and adapters (docs/decisions/043-default-hyperparameters.md).
WHOLE_RATE_SHARE = 0.1
# Rows that are scored before a stop is obeyed and a checkpoint may be written.
REFERENCE_ROWS = 32
# The shares of a GPU's memory that passes are sized for: of all of it, and of what was free when the run began.
GPU_SHARE, FREE_SHARE = 0.8, 0.9


def limits_of(config: Any, spec: Spec, device: torch.device, documents: int | None = None) -> Limits:
    """Limits of one pass of at most so many documents. On a GPU, as many tokens as fit into its memory."""
    limits = _limits_of_memory(config, spec, device)
    text = config.get_text_config()
    if getattr(text, "attn_temperature_tuning", False):
        # Llama 4 scales queries by their place in the pass, from this one on.
        limits = replace(limits, tokens=min(limits.tokens, text.floor_scale - 1))
    return replace(limits, documents=documents)


def _limits_of_memory(config: Any, spec: Spec, device: torch.device) -> Limits:
    if device.type == "cpu":
        return Limits()
    budget = torch.cuda.get_device_properties(device).total_memory * GPU_SHARE
    return limits_within(min(budget, (spec.memory_mb or math.inf) * 1e6 * FREE_SHARE), config, spec, device)


def limits_within(budget: float, config: Any, spec: Spec, device: torch.device) -> Limits:
    """The largest passes of a GPU that take no more than `budget` bytes; those of the checkpoint, if they do: a resumed
    run makes the same.
    """
    shape, begun = memory.shape_of(config), checkpoint.pass_tokens_of(spec)
    ranks = Distributed().world if spec.sharded else 1
    for tokens in (*([begun] if begun else []), 32768, 16384, 8192, 4096):
        targets = tokens if memory.head_in_chunks(shape, spec) else Limits.targets
        if memory.predicted_bytes(shape, spec, 2, tokens, targets, device, ranks=ranks) < budget:
            return Limits(tokens, targets)
    return Limits(2048, 2048)


def rate_groups(parameters: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
    """The optimizer's groups, each with the share of the learning rate at which it is trained."""
    slow = [name for name in parameters if ".modules_to_save." in name]
    rest = [parameter for name, parameter in parameters.items() if name not in slow]
    groups = [{"params": rest, "rate_share": 1.0}]
    if slow:
        groups.append({"params": [parameters[name] for name in slow], "rate_share": WHOLE_RATE_SHARE})
    return groups


class Loop:
    """Trains `model` on `data`, from the newest good checkpoint on. `totals` has the progress.

    `predicted`: the bytes of memory that the run should stay within.
    """

    def __init__(
        self,
        spec: Spec,
        model: Model,
        tokenizer: Tokenizer,
        data: Prepared,
        held_out: Prepared | None,
        folder: Path,
        device: torch.device,
        protocol: Protocol,
        distributed: Distributed | None = None,
        predicted: float = math.inf,
    ) -> None:
        training = spec.training
        self.spec, self.model, self.data, self.device, self.protocol = spec, model, data, device, protocol
        self.folder = folder / "checkpoints"
        self.distributed, self.predicted = distributed or Distributed(spec.sharded), predicted
        self.parameters = trainable(model)
        self.optimizer = torch.optim.AdamW(
            rate_groups(self.parameters),
            lr=training.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=training.weight_decay,
            fused=True,
        )
        self.limits = limits_of(model.config, spec, device, None if keeps_apart(model) else 1)
        sight = getattr(tokenizer, "sight", None)
        shown = sight if sight and sight.pictures else None
        # Beside the checkpoints, which the service removes when a job fails. Each process has its own: they may be on
        # several machines.
        pictures = self.folder / ("pictures" if self.distributed.is_first else f"pictures-{self.distributed.rank}")
        # Read by `inputs_of`.
        model.features = self.features = Features(model, shown, spec, pictures, device) if shown else None
        self.objective = objective_of(spec, data, held_out, device)
        self.row_index = {row.number: index for index, row in enumerate(data.rows)}
        self.steps_per_epoch = math.ceil(len(data.rows) / training.batch_size)
        self.steps_total = self.steps_per_epoch * training.epochs
        # The batches of one epoch, by row, and its number.
        self.epoch_batches: tuple[int, list[list[int]]] = (-1, [])
        first = [
            [sequence for row in self.batch(step) for sequence in row.sequences]
            for step in range(min(8, self.steps_per_epoch))
        ]
        # A graph has ids at its start, not vectors.
        capturable = not shown and not self.distributed.sharded and worth_capturing(model, first, self.limits, device)
        self.cuda_graphs = CudaGraphs(model, list(self.parameters.values()), device) if capturable else None
        self.objective.set_batches([self.batch(step) for step in range(self.steps_per_epoch)])
        self.validation = Validation(
            spec,
            model,
            tokenizer,
            held_out,
            folder,
            self.objective,
            self.limits,
            protocol,
            data.common.asked_with(tokenizer),
            self.distributed,
        )
        precision = model.get_input_embeddings().weight.dtype
        self.state = State(
            self.parameters,
            self.optimizer,
            precision,
            torch.full((len(data.rows), 2), math.nan),
            self.objective.reference,
            self.limits.tokens,
        )
        self.resumed = checkpoint.resume(self.state, spec, protocol)
        self.totals = self.state.totals
        self.validation.restore(self.state.validation)
        # Step and loss of the steps since the last event that had them: reports are rarer than fast steps.
        self.unreported: list[tuple[int, float]] = []
        self.estimate = Estimate(data.tokens * training.epochs, self.totals.tokens)
        self.written_at = time.monotonic()
        self.written_step = self.totals.step
        self.unsaved_reference = False
        self.write_seconds = 0.0

    def run(self) -> bool:
        """Trains to the end and leaves a checkpoint there. False if a stop was requested before."""
        try:
            return self._train()
        except StopRequested:
            # The interrupted work is repeated identically when the run resumes from the last finished step.
            if self.totals.step > self.written_step or self.unsaved_reference:
                self._checkpoint()
            return False

    def _interruptible(self) -> AbstractContextManager[None]:
        """Makes work without lasting effects interruptible: a step is slow on a busy machine. Not with several
        processes, which must all end after the same step.
        """
        return (
            self.protocol.interruptible()
            if self.device.type == "cpu" and self.distributed.world == 1
            else nullcontext()
        )

    def _train(self) -> bool:
        if not self._encode_pictures():
            return False
        if self.distributed.takes_part:
            with self._interruptible():
                self.validation.answer_with_base(self.device)
        if not self._compute_reference():
            return False
        if self.validation.unfinished_at == self.totals.step and self.totals.step > 0:
            self.totals.ended_early = self._evaluate()
        while self.totals.step < self.steps_total and not self.totals.ended_early:
            started, started_cpu = time.monotonic(), time.process_time()
            batch = self.batch(self.totals.step)
            loss, norm, rate, figures = self.step(batch)
            if self.totals.step % TRIM_STEPS == 0:
                memory.trim_heap(self.predicted, self.device)
            seconds, cpu_seconds = time.monotonic() - started, time.process_time() - started_cpu
            self._count(batch, loss, seconds, cpu_seconds)
            checkpoint_due = self._checkpoint_due()
            self._report(batch, loss, norm, rate, seconds, cpu_seconds, figures, always=checkpoint_due)
            if self.validation.due(self.totals.step, self.steps_per_epoch, self.steps_total):
                self.totals.ended_early = self._evaluate()
            if self.distributed.any_rank(self.protocol.stop_requested, self.device):
                self._checkpoint()
                return False
            if self.totals.step == self.steps_total or self.totals.ended_early or checkpoint_due:
                self._checkpoint()
        return True

    def _encode_pictures(self) -> bool:
        """Makes the vectors of all pictures. False if a stop was requested: the next attempt has those that are
        made.
        """
        features = self.features
        missing = features.missing if features else []
        if not features or not missing:
            return True
        self.protocol.emit("status", f"Looking at {len(missing)} pictures", phase="pictures")
        started = time.monotonic()
        try:
            for index in missing:
                with self._interruptible():
                    features.encode(index)
                if self.distributed.any_rank(self.protocol.stop_requested, self.device):
                    return False
        finally:
            features.flush()
        seconds = round(time.monotonic() - started, 1)
        self.protocol.emit("log", f"{len(missing)} pictures are encoded", pictures=len(missing), seconds=seconds)
        return True

    def _compute_reference(self) -> bool:
        """Computes the missing references of a preference training, in pieces between which a checkpoint may be
        written. False if a stop was requested.
        """
        rows = [*self.data.rows, *(self.validation.rows.rows if self.validation.rows else [])]
        missing = self.objective.missing(rows)
        if not missing:
            return True
        self.protocol.emit("status", "Scoring the answers with the model as it is", phase="reference")
        for start in range(0, len(missing), REFERENCE_ROWS):
            self.reference_of(missing[start : start + REFERENCE_ROWS])
            self.unsaved_reference = True
            if self.distributed.any_rank(self.protocol.stop_requested, self.device):
                self._checkpoint()
                return False
            if self._checkpoint_due():
                self._checkpoint()
        self.protocol.emit("log", f"{len(missing)} rows are scored", rows=len(missing))
        return True

    def reference_of(self, rows: list[Row]) -> None:
        """Computes the references of rows that have none: of held-out rows as their scores are computed, of others as
        their losses are.
        """
        held_out = {id(row) for row in self.validation.rows.rows} if self.validation.rows else set()
        self._reference_of([row for row in rows if id(row) not in held_out], nullcontext())
        self._reference_of([row for row in rows if id(row) in held_out], as_served(self.model))

    def _reference_of(self, rows: list[Row], precision: AbstractContextManager[None]) -> None:
        objective, missing = self.objective, self.objective.missing(rows)
        if not missing or not isinstance(objective, Preferences):
            return
        limits = evaluate.limits_of_scoring(self.limits)
        own_indices = self.distributed.shard([row.tokens for row in missing])
        with precision:
            for group in split([missing[index] for index in own_indices], limits):
                with self._interruptible():
                    objective.compute_reference(self.model, group, limits)
        objective.gather_references(missing, own_indices, self.distributed)

    def _evaluate(self) -> bool:
        evaluate = self.validation.evaluate
        ended = self.distributed.takes_part and evaluate(
            self.totals.step, self.steps_total, self.train_loss, self.parameters, self.device, self._interruptible
        )
        return self.distributed.from_first(ended, self.device)

    @property
    def train_loss(self) -> float:
        """Mean loss over the last epoch: of a learned token, or of a row of preferences."""
        return self.totals.epoch_loss / max(1, self.totals.epoch_targets)

    def batch(self, step: int) -> list[Row]:
        """The rows of a step (counted from 0)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self.epoch_batches[0] != epoch:
            training = self.spec.training
            order = order_of(epoch, len(self.data.rows), training.seed)
            self.epoch_batches = epoch, self.objective.batches(order, epoch, training.batch_size, training.seed)
        return [self.data.rows[row] for row in self.epoch_batches[1][index]]

    def step(self, batch: list[Row]) -> tuple[float, float, float, dict[str, float]]:
        """One optimizer step. Returns the batch's loss, the gradient's norm before clipping, the learning rate, and
        figures of the batch. Raises JobError("non_finite_loss") before the weights change.
        """
        training, step = self.spec.training, self.totals.step
        # Seeds dropout by the step: a resumed run draws the same noise without stored state.
        torch.manual_seed(training.seed * 1_000_003 + step + self.distributed.rank * 7_919_000_000_003)
        rate = learning_rate(step, self.steps_total, training.learning_rate, training.warmup_ratio, training.scheduler)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_share"]
        with self._interruptible():
            loss, figures = self.gradients(batch)
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
        return loss, norm, rate, figures

    def gradients(self, batch: list[Row]) -> tuple[float, dict[str, float]]:
        """Accumulates the batch's gradients. Returns its loss, however the batch is split, and figures of its rows."""
        objective = self.objective
        objective.begin(self.model, batch, self.limits, self.distributed)
        units, weight = objective.units(batch), objective.weight(batch)
        own_indices = self.distributed.shard([unit.tokens for unit in units])
        tables: list[torch.Tensor] = []
        groups = split([units[index] for index in own_indices], self.limits)
        for group in groups:

            def loss_of(token_losses: torch.Tensor, group: list[Row] = group) -> torch.Tensor:
                table = objective.losses(group, token_losses)
                tables.append(table.detach())
                return table[:, 0].sum() / weight

            if self.cuda_graphs:
                self.cuda_graphs.gradients(objective.pack(group, share=False), loss_of)
            else:
                loss_of(objective.token_losses(self.model, group, self.limits)).backward()
        self._fill_passes(units, len(groups))
        self.distributed.all_reduce_gradients(list(self.parameters.values()))
        # Read once, at the end: each read waits for the GPU to finish its queue.
        table = torch.cat(tables).tolist() if tables else []
        columns = 1 + len(objective.columns)
        table = self.distributed.gather(table, own_indices, len(units), columns, self.device)
        self._record_row_losses(objective.row_losses(batch, iter([line[0] for line in table])))
        return sum(line[0] for line in table) / weight, objective.summary([line[1:] for line in table])

    def _fill_passes(self, units: list[Row], passes: int) -> None:
        """Computes passes that add nothing until this process has made as many as each of those that share the weights:
        a layer is gathered from all of them.
        """
        if not self.distributed.sharded:
            return
        lengths = [unit.tokens for unit in units]
        shares = [self.distributed.shard(lengths, rank) for rank in range(self.distributed.world)]
        most = max(len(split([units[index] for index in share], self.limits)) for share in shares)
        shortest = min(units, key=lambda unit: unit.tokens)
        for _ in range(most - passes):
            (self.objective.token_losses(self.model, [shortest], self.limits).sum() * 0).backward()

    def _record_row_losses(self, losses: list[tuple[Row, float]]) -> None:
        for row, loss in losses:
            first_and_last = self.state.row_losses[self.row_index[row.number]]
            first_and_last[1] = loss
            if first_and_last[0].isnan():
                first_and_last[0] = loss

    def _count(self, batch: list[Row], loss: float, seconds: float, cpu_seconds: float) -> None:
        totals, tokens = self.totals, sum(row.tokens for row in batch)
        if totals.step % self.steps_per_epoch == 0:
            totals.epoch_loss, totals.epoch_targets = 0.0, 0
        weight = self.objective.weight(batch)
        totals.step += 1
        totals.tokens += tokens
        totals.seconds += seconds
        totals.epoch_loss += loss * weight
        self.unreported.append((totals.step, loss))
        totals.epoch_targets += weight
        self.estimate.step(tokens, seconds, cpu_seconds if self.device.type == "cpu" else None)

    def _report(
        self,
        batch: list[Row],
        loss: float,
        norm: float,
        rate: float,
        seconds: float,
        cpu_seconds: float,
        figures: dict[str, float],
        always: bool,
    ) -> None:
        """Reports the step if it is time to, or `always`: before a checkpoint, from which a run resumes that never
        reports the steps before it.
        """
        totals = self.totals
        if not self.protocol.metrics_due(last=always or totals.step == self.steps_total):
            return
        position = {"step": totals.step, "steps_total": self.steps_total}
        epoch = (totals.step - 1) // self.steps_per_epoch + 1
        speed = round(sum(row.tokens for row in batch) / seconds, 1)
        self.protocol.emit(
            "metrics",
            f"Step {totals.step} of {self.steps_total}: loss {loss:.4f}",
            **position,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            tokens_per_second=speed,
            tokens=totals.tokens,
            grad_norm=norm,
            memory_mb=round(memory.held_bytes(self.device) / 1e6),
            cpu_cores=round(cpu_seconds / seconds, 2),
            losses=self._take_unreported(),
            **figures,
        )
        progress, left = self.estimate.progress(), self.estimate.seconds_left()
        message = f"{progress:.0%} done" + ("" if left is None else f", about {left:.0f} s left")
        self.protocol.emit("progress", message, **position, progress=progress, current_epoch=epoch, seconds_left=left)

    def _take_unreported(self) -> list[tuple[int, float]]:
        losses, self.unreported = self.unreported, []
        return losses

    def _checkpoint_due(self) -> bool:
        policy = self.spec.checkpoint
        if policy.every_steps and self.totals.step % policy.every_steps == 0:
            return True
        if policy.every_seconds is None:
            return False
        return time.monotonic() - self.written_at >= max(policy.every_seconds, self.write_seconds / CHECKPOINT_SHARE)

    def _checkpoint(self) -> None:
        if not self.distributed.is_first:
            return
        started = time.monotonic()
        self.state.validation = self.validation.state
        written = checkpoint.write(self.folder, self.state, self.spec)
        self.written_at = time.monotonic()
        self.written_step = self.totals.step
        self.unsaved_reference = False
        self.write_seconds = self.written_at - started
        step = self.totals.step
        message = f"Checkpoint at step {step} of {self.steps_total}"
        self.protocol.emit(
            "checkpoint",
            message,
            step=step,
            path=str(written.path),
            sha256=written.sha256,
            size_mb=written.size_mb,
            # Only a run that is stopped has some left: before other checkpoints the step is reported.
            losses=self._take_unreported(),
        )
        checkpoint.keep_newest(self.folder, self.spec.checkpoint.keep, self.spec.resume_from)
