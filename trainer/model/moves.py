"""How the factors of an adapter become those of the engine's weights: read once from tables that go through a base's
conversion, and then applied to any adapter of the same shape.
"""

from dataclasses import dataclass

import torch

from trainer.model.adapter_file import Pair
from trainer.runtime.errors import JobError

# A table's entry: the number of the weight's pair, times this, and a row or column.
LINES = 1 << 24


@dataclass(frozen=True)
class Part:
    """The entries of an engine's weight that come from one pair: its number; the expert, of a stack; which of its rows
    and columns, None: all in their order; whether they are transposed; which rows of the engine's weight they become,
    bool [outputs], None: all; and what these are multiplied by, float32 [outputs, 1], None: nothing.
    """

    source: int
    expert: int | None
    rows: torch.Tensor | None
    columns: torch.Tensor | None
    transposed: bool
    chosen: torch.Tensor | None
    scales: torch.Tensor | None

    def of(self, sources: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        """A [rank, inputs] and B [outputs, rank] of the engine's weight."""
        pair = sources[self.source]
        down, up = (pair.a, pair.b) if self.expert is None else (pair.a[self.expert], pair.b[self.expert])
        down = down if self.columns is None else down[:, self.columns]
        up = up if self.rows is None else up[self.rows]
        if self.transposed:
            down, up = up.T, down.T
        if self.chosen is not None:
            whole = torch.zeros(len(self.chosen), up.shape[1])
            whole[self.chosen] = up
            up = whole
        return down, up if self.scales is None else up * self.scales


@dataclass(frozen=True)
class Move:
    """An engine's weight: the parts that are added up, or a move for each expert of a stack."""

    parts: tuple[Part, ...] = ()
    experts: tuple["Move", ...] = ()

    @property
    def used(self) -> set[int]:
        """The numbers of the sources."""
        return {part.source for part in self.parts}.union(*(expert.used for expert in self.experts))

    def of(self, sources: list[Pair]) -> Pair:
        """The pair of the engine's weight."""
        if self.experts:
            pairs = [expert.of(sources) for expert in self.experts]
            return Pair(torch.stack([pair.a for pair in pairs]), torch.stack([pair.b for pair in pairs]))
        factors = [part.of(sources) for part in self.parts]
        if len(factors) == 1:
            return Pair(*factors[0])
        return Pair(torch.cat([down for down, _ in factors]), torch.cat([up for _, up in factors], 1))


def unconvertible(name: str, why: str) -> JobError:
    """The error of an adapter whose weight of this name the engine cannot take."""
    return JobError(
        "adapter_invalid", f"The adapter's change of {name} cannot be served unmerged: {why[:300]}. Merge the model."
    )


def tables(number: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Three float64 tensors of a weight's shape [outputs, inputs] or [experts, outputs, inputs]: the row of each entry,
    its column, both with the number of its pair; and ones. A stack's rows continue from expert to expert.
    """
    *stack, outputs, inputs = shape
    lines = torch.arange(outputs * (stack[0] if stack else 1), dtype=torch.float64).reshape(*stack, outputs, 1)
    rows, columns = lines, torch.arange(inputs, dtype=torch.float64)
    return (
        (number * LINES + rows).expand(shape),
        (number * LINES + columns).expand(shape),
        torch.ones((), dtype=torch.float64).expand(shape),
    )


def move_of(shapes: list[tuple[int, ...]], tables: tuple[torch.Tensor, ...], name: str) -> Move:
    """How the engine's weight comes from the sources' weights of these shapes. `tables`: theirs after the conversion,
    in the engine's shape. Raises JobError("adapter_invalid") if the conversion mixes rows and columns.
    """
    rows, columns, ones = tables
    if rows.ndim == 3:
        return Move(experts=tuple(move_of(shapes, each, name) for each in zip(rows, columns, ones, strict=True)))
    numbers, scales = (rows[:, 0] / ones[:, 0] // LINES).long(), ones[:, :1]
    parts = []
    for number in numbers.unique().tolist():
        chosen = numbers == number
        lines = rows[chosen] / ones[chosen] - number * LINES
        places = columns[chosen] / ones[chosen] - number * LINES
        if not (ones[chosen] == scales[chosen]).all():
            raise unconvertible(name, "its rows and columns are mixed")
        if (lines == lines[:, :1]).all() and (places == places[:1]).all():
            transposed, line, place = False, lines[:, 0], places[0]
        elif (lines == lines[:1]).all() and (places == places[:, :1]).all():
            transposed, line, place = True, lines[0], places[:, 0]
        else:
            raise unconvertible(name, "its rows and columns are mixed")
        *stack, outputs, inputs = shapes[number]
        expert = int(line[0]) // outputs if stack else None
        parts.append(
            Part(
                source=number,
                expert=expert,
                rows=_unless_all(line - (expert or 0) * outputs, outputs),
                columns=_unless_all(place, inputs),
                transposed=transposed,
                chosen=None if chosen.all() else chosen,
                scales=None if (scales == 1).all() else scales.float(),
            )
        )
    return Move(tuple(parts))


def _unless_all(lines: torch.Tensor, count: int) -> torch.Tensor | None:
    return None if torch.equal(lines, torch.arange(count, dtype=lines.dtype)) else lines.int()
