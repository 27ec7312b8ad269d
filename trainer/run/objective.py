"""What a training minimizes: the loss of learned tokens, or of preferences against the model that it starts from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from trainer.data.dataset import Prepared, Row, Sequence
from trainer.data.packing import Limits, Pack, pack, split
from trainer.model.fast_lora import zero_adapters_skipped
from trainer.model.model import Model
from trainer.model.served import as_served
from trainer.run import evaluate
from trainer.run.schedule import order_of
from trainer.runtime.distributed import Distributed
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Options, Spec

# A row, or its number.
Item = TypeVar("Item")


def in_batches(rows: list[Item], size: int) -> list[list[Item]]:
    """Consecutive rows in groups of `size`; the last one may be smaller."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def objective_of(spec: Spec, data: Prepared, held_out: Prepared | None, device: torch.device) -> "Objective":
    """The spec's objective. That of preferences knows the held-out rows, too, as it keeps their references."""
    if spec.options.objective == "sft":
        return Objective(device)
    rows = [*data.rows, *(held_out.rows if held_out else [])]
    kind = Dpo if spec.options.objective == "dpo" else Kto
    return kind(spec, rows, device)


@dataclass(frozen=True)
class Scores:
    """Figures of the held-out rows: the loss, which compares states, a sentence, and all figures but the loss."""

    loss: float
    text: str
    figures: dict[str, float]


class Objective:
    """Supervised training: the mean loss of a learned token."""

    # Consecutive sequences with one prompt.
    together = 1
    # What is measured of a row beside its loss.
    columns: tuple[str, ...] = ()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # The log-probabilities under the model at the start: [rows, of each], or NaN.
        self.reference = torch.empty(0, 0)

    def batches(self, order: list[int], epoch: int, size: int, seed: int) -> list[list[int]]:
        """The batches of an epoch, from the order of its rows."""
        return in_batches(order, size)

    def set_batches(self, batches: list[list[Row]]) -> None:
        """Tells which rows come in one batch."""

    def begin(self, model: Model, batch: list[Row], limits: Limits, distributed: Distributed) -> None:
        """Computes what the losses of a batch's rows depend on."""

    def units(self, batch: list[Row]) -> list[Row]:
        """The parts of a batch that a pass computes whole."""
        return [Row(row.number, [sequence], row.label) for row in batch for sequence in row.sequences]

    def weight(self, batch: list[Row]) -> int:
        """What the batch's loss is divided by."""
        return sum(row.targets for row in batch)

    def row_losses(self, batch: list[Row], units: Iterator[float]) -> list[tuple[Row, float]]:
        """The loss of each row of a batch, from those of its units."""
        return [(row, sum(next(units) for _ in row.sequences) / row.targets) for row in batch]

    def losses(self, group: list[Row], token_losses: torch.Tensor) -> torch.Tensor:
        """The losses of units [units, 1 + columns] from those of their learned tokens [targets]: what adds up to the
        batch's loss, then the columns.
        """
        return torch.stack([part.sum() for part in token_losses.split([unit.targets for unit in group])])[:, None]

    def summary(self, table: list[list[float]]) -> dict[str, float]:
        """Figures of rows from their `columns`."""
        return {}

    def missing(self, rows: list[Row]) -> list[Row]:
        """The rows without a reference."""
        return []

    def score(self, model: Model, data: Prepared, limits: Limits, batch_size: int) -> Scores:
        """Scores held-out rows with the model as it will be served."""
        with as_served(model):
            loss, exact, accuracy = evaluate.score(model, data, limits, self.device)
        text = f"validation loss {loss:.4f}, {exact:.0%} of the held-out rows exact"
        return Scores(loss, text, {"validation_exact": exact, "validation_accuracy": accuracy})

    def pack(self, group: list[Row], share: bool = True) -> Pack:
        """The inputs of one pass over units. `share`: compute a prefix that they share once."""
        sequences = [sequence for unit in group for sequence in unit.sequences]
        return pack(sequences, self.device, share, self.together)

    def token_losses(self, model: Model, group: list[Row], limits: Limits) -> torch.Tensor:
        """The loss of each learned token of units [targets], in one pass if the model can pack."""
        if limits.documents is None or self.together == 1:
            return evaluate.losses(model, self.pack(group))
        return torch.cat(
            [evaluate.losses(model, pack([sequence], self.device)) for unit in group for sequence in unit.sequences]
        )


class Preferences(Objective):
    """Losses of whole answers: of a row's log-probabilities compared with those at the start of the training."""

    def __init__(self, spec: Spec, rows: list[Row], device: torch.device) -> None:
        super().__init__(device)
        self.options: Options = spec.options
        self.index = {id(row): position for position, row in enumerate(rows)}
        self.reference = torch.full((len(rows), 2), math.nan)

    def units(self, batch: list[Row]) -> list[Row]:
        """The rows: both answers of a pair belong to one pass."""
        return batch

    def weight(self, batch: list[Row]) -> int:
        """The number of rows."""
        return len(batch)

    def row_losses(self, batch: list[Row], units: Iterator[float]) -> list[tuple[Row, float]]:
        """A unit is a row."""
        return list(zip(batch, units, strict=True))

    def missing(self, rows: list[Row]) -> list[Row]:
        """The rows whose log-probabilities at the start are unknown."""
        return [row for row in rows if self.reference[self.index[id(row)]].isnan().any()]

    def references_of(self, group: list[Row]) -> torch.Tensor:
        """The log-probabilities of rows at the start [rows, 2], on the device. NaN where a row has none."""
        return self.reference[[self.index[id(row)] for row in group]].to(self.device)

    def log_probabilities(self, group: list[Row], token_losses: torch.Tensor) -> torch.Tensor:
        """The sum of each sequence's learned tokens [units, sequences of each]."""
        targets = [sequence.targets for unit in group for sequence in unit.sequences]
        return -torch.stack([part.sum() for part in token_losses.split(targets)]).view(len(group), -1)

    @torch.no_grad()
    def compute_reference(self, model: Model, group: list[Row], limits: Limits) -> None:
        """Stores the log-probabilities of rows under the model as it is: at the start, before the first step."""
        was_training = model.training
        model.eval()
        with zero_adapters_skipped(model):
            references = self.reference_log_probabilities(model, group, limits)
        for row, values in zip(group, references.cpu(), strict=True):
            self.reference[self.index[id(row)]] = values
        model.train(was_training)

    def gather_references(self, rows: list[Row], own_indices: list[int], distributed: Distributed) -> None:
        """Shares what each rank computed for its own rows, at `own_indices` of `rows`."""
        positions = [self.index[id(row)] for row in rows]
        own_values = [self.reference[positions[index]].tolist() for index in own_indices]
        values = distributed.gather(own_values, own_indices, len(rows), 2, self.device)
        self.reference[positions] = torch.tensor(values).view(-1, 2)

    @torch.no_grad()
    def score(self, model: Model, data: Prepared, limits: Limits, batch_size: int) -> Scores:
        """Scores held-out rows with the model as it will be served. Their references are computed already."""
        was_training = model.training
        model.eval()
        table: list[list[float]] = []
        limits = evaluate.limits_of_scoring(limits)
        with as_served(model):
            for batch in in_batches(data.rows, batch_size):
                self.begin(model, batch, limits, Distributed.alone())
                for group in split(batch, limits):
                    table += self.losses(group, self.token_losses(model, group, limits)).tolist()
        model.train(was_training)
        loss = sum(line[0] for line in table) / len(table)
        figures = {f"validation_{name}": value for name, value in self.summary([line[1:] for line in table]).items()}
        text = f"validation loss {loss:.4f}, {figures['validation_reward_accuracy']:.0%} of the preferences kept"
        return Scores(loss, text, figures)

    def reference_log_probabilities(self, model: Model, group: list[Row], limits: Limits) -> torch.Tensor:
        """What a row's losses are compared with [rows, 2], under the model as it is."""
        return self.log_probabilities(group, self.token_losses(model, group, limits))


class Dpo(Preferences):
    """Direct preference optimization (Rafailov et al., 2023, arXiv 2305.18290), with the losses ipo (Azar et al., 2023,
    arXiv 2310.12036, over the mean of an answer's tokens, as their authors compute it) and robust (Chowdhury et al.,
    2024, arXiv 2403.00409).
    """

    together = 2
    columns = ("margin", "accuracy")

    def begin(self, model: Model, batch: list[Row], limits: Limits, distributed: Distributed) -> None:
        """Counts the learned tokens of chosen answers, a row's mean, which `sft_weight` needs."""
        self.chosen_targets = sum(row.sequences[0].targets for row in batch) / len(batch)

    def losses(self, group: list[Row], token_losses: torch.Tensor) -> torch.Tensor:
        """[pairs, 3]: loss, margin of the rewards, and 1 where the chosen answer has the higher one."""
        options = self.options
        log_probabilities = self.log_probabilities(group, token_losses)
        ratios = log_probabilities - self.references_of(group)
        margin = options.beta * (ratios[:, 0] - ratios[:, 1])
        if options.loss_type == "ipo":
            targets = [[sequence.targets for sequence in unit.sequences] for unit in group]
            means = ratios / torch.tensor(targets, device=self.device)
            loss = (means[:, 0] - means[:, 1] - 1 / (2 * options.beta)) ** 2
        else:
            right, wrong = -logsigmoid(margin), -logsigmoid(-margin)
            share = options.label_smoothing
            if options.loss_type == "robust":
                loss = ((1 - share) * right - share * wrong) / (1 - 2 * share)
            else:
                loss = (1 - share) * right + share * wrong
        if options.sft_weight:
            # The batch's mean over the tokens of its chosen answers, as a sum over its rows.
            loss = loss - options.sft_weight * log_probabilities[:, 0] / self.chosen_targets
        return torch.stack([loss, margin.detach(), (margin > 0).float()], 1)

    def summary(self, table: list[list[float]]) -> dict[str, float]:
        """The mean margin, and the share of pairs whose chosen answer has the higher reward."""
        margins, hits = zip(*table, strict=True)
        return {"reward_margin": sum(margins) / len(margins), "reward_accuracy": sum(hits) / len(hits)}


class Kto(Preferences):
    """Kahneman-Tversky optimization (Ethayarajh et al., 2024, arXiv 2402.01306).

    How far the model has moved is estimated in each batch from answers that belong to other prompts: each row's prompt
    with the answer of a row before it. So that the reference of these is computed once, too, the rows of a batch stay
    together in all epochs.
    """

    columns = ("reward", "label")

    def __init__(self, spec: Spec, rows: list[Row], device: torch.device) -> None:
        super().__init__(spec, rows, device)
        self.max_length = spec.training.max_length
        self.learned: list[Row] = []
        # Each row with another row's answer, by the row's position; filled as batches are made.
        self.mismatched: dict[int, Row] = {}
        self.moved = torch.zeros(())

    def batches(self, order: list[int], epoch: int, size: int, seed: int) -> list[list[int]]:
        """The same batches in each epoch, in another order."""
        fixed = order_of(0, len(order), seed)
        batches = super().batches(fixed, 0, size, seed)
        return batches if epoch == 0 else [batches[index] for index in order_of(epoch, len(batches), seed)]

    def set_batches(self, batches: list[list[Row]]) -> None:
        """Gives each row of the batches another answer: of the nearest row before it in its batch that has one, else of
        the nearest in all batches, else of the rows that are learned. Raises JobError("dataset_invalid") if no row has
        another answer: nothing would be learned.
        """
        rows = [row for batch in batches for row in batch]
        self.learned = self.learned or rows
        others = dict(zip(map(id, rows), _nearest_other(rows), strict=True))
        for batch in batches:
            for row, other in zip(batch, _nearest_other(batch), strict=True):
                other = other or others[id(row)] or next((each for each in self.learned if _differ(each, row)), None)
                if other is None:
                    raise JobError(
                        "dataset_invalid",
                        "All rows have the same answer. KTO compares each answer with answers to other prompts, so it "
                        "would learn nothing: add rows with other answers.",
                    )
                self.mismatched[self.index[id(row)]] = Row(row.number, [self._with_answer(row, other)], row.label)

    def _with_answer(self, row: Row, other: Row) -> Sequence:
        prompt, answer = row.sequences[0], other.sequences[0]
        joined = prompt.part(0, _answer_start(prompt)).followed_by(answer.part(_answer_start(answer)))
        return joined.part(0, self.max_length)

    def reference_log_probabilities(self, model: Model, group: list[Row], limits: Limits) -> torch.Tensor:
        """[rows, 2]: of the row's own answer, and of its prompt with another row's answer."""
        answers = super().reference_log_probabilities(model, group, limits)
        return torch.cat([answers, self._mismatched_log_probabilities(model, group, limits)], 1)

    def _mismatched_log_probabilities(self, model: Model, rows: list[Row], limits: Limits) -> torch.Tensor:
        """[rows, 1]"""
        parts = []
        for group in split([self.mismatched[self.index[id(row)]] for row in rows], limits):
            parts.append(self.log_probabilities(group, self.token_losses(model, group, limits)))
        return torch.cat(parts) if parts else torch.empty(0, 1, device=self.device)

    def begin(self, model: Model, batch: list[Row], limits: Limits, distributed: Distributed) -> None:
        """Estimates over all ranks how far the model has moved from its start (the paper's z0)."""
        mismatched = [self.mismatched[self.index[id(row)]] for row in batch]
        own_rows = [batch[index] for index in distributed.shard([row.tokens for row in mismatched])]
        with torch.no_grad():
            log_probabilities = self._mismatched_log_probabilities(model, own_rows, limits)[:, 0]
            change = (
                (log_probabilities - self.references_of(own_rows)[:, 1]).sum() if own_rows else log_probabilities.sum()
            )
        self.moved = (distributed.sum(change) / len(batch)).clamp(min=0)

    def losses(self, group: list[Row], token_losses: torch.Tensor) -> torch.Tensor:
        """[rows, 3]: loss, reward, and 1 for an answer that is rated good."""
        options = self.options
        reward = options.beta * (self.log_probabilities(group, token_losses)[:, 0] - self.references_of(group)[:, 0])
        good = torch.tensor([float(unit.label is True) for unit in group], device=self.device)
        direction, weight = 2 * good - 1, torch.where(good > 0, options.desirable_weight, options.undesirable_weight)
        loss = weight * (1 - torch.sigmoid(direction * (reward - options.beta * self.moved)))
        return torch.stack([loss, reward.detach(), good], 1)

    def summary(self, table: list[list[float]]) -> dict[str, float]:
        """The accuracy is the share of rows whose reward has the sign of their label; the margin needs both labels."""
        good = [reward for reward, label in table if label]
        bad = [reward for reward, label in table if not label]
        margin = {"reward_margin": sum(good) / len(good) - sum(bad) / len(bad)} if good and bad else {}
        hits = sum(reward > 0 for reward in good) + sum(reward < 0 for reward in bad)
        return {**margin, "reward_accuracy": hits / len(table)}


def _answer_start(sequence: Sequence) -> int:
    return int(np.argmax(sequence.trained))


def _differ(one: Row, other: Row) -> bool:
    """Whether two rows have different answers."""
    answer, other_answer = (row.sequences[0].ids[_answer_start(row.sequences[0]) :] for row in (one, other))
    return not np.array_equal(answer, other_answer)


def _nearest_other(rows: list[Row]) -> list[Row | None]:
    """For each row the nearest before it, in a circle, that has another answer."""
    nearest: list[Row | None] = [None] * len(rows)
    # The second time around, the first rows have the last ones before them.
    for index in [*range(len(rows)), *range(len(rows))]:
        before = rows[index - 1]
        nearest[index] = before if _differ(before, rows[index]) else nearest[index - 1]
    return nearest
