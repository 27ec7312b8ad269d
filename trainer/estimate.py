"""How far a run is and how long it still takes."""

from collections import deque
from statistics import median

# Saving and converting the adapter after the last step: 1.0 s as measured for a 135M base on two cores, more when they are busy. Only
# the adapter is converted, so larger bases take little longer.
CLOSING_SECONDS = 2.0
# The median of this many steps is what a token is believed to cost: one step that stood still beside another process says little.
WINDOW = 9


class Estimate:
    """Counts tokens, not steps: rows differ in length, and a short last batch would mislead."""

    def __init__(self, tokens_total: int, tokens_done: int) -> None:
        self._total = tokens_total
        self._done = tokens_done
        self._seconds_a_token: deque[float] = deque(maxlen=WINDOW)
        self._steps_seen = 0
        self._progress = 0.0
        # What the first guess at the training's seconds was, to be shown beside what they came to.
        self.first_total: float | None = None

    def step(self, tokens: int, seconds: float) -> None:
        self._done += tokens
        self._steps_seen += 1
        # The first step also warms caches and allocators up; it is no measure of the others.
        if self._steps_seen > 1:
            self._seconds_a_token.append(seconds / tokens)
        if len(self._seconds_a_token) == 2 and self.first_total is None:
            self.first_total = round(self._total * median(self._seconds_a_token), 1)

    def seconds_left(self) -> float | None:
        """Seconds until the job ends, its conversion included. None before the third step."""
        if len(self._seconds_a_token) < 2:
            return None
        return round((self._total - self._done) * median(self._seconds_a_token) + CLOSING_SECONDS, 1)

    def progress(self) -> float:
        """Share of the whole job's time that is behind it, 0 to 1; never goes back."""
        closing = CLOSING_SECONDS / median(self._seconds_a_token) if self._seconds_a_token else 0.0
        self._progress = max(self._progress, self._done / (self._total + closing))
        return round(self._progress, 4)
