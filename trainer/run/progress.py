"""How far a run is and how long it still takes."""

from collections import deque
from statistics import median

# Saving and converting the adapter after the last step: 1.0 s as measured for a 135M base on two cores, more when they
# are busy. Only the adapter is converted, so larger bases take little longer.
CLOSING_SECONDS = 2.0
# The median of this many steps is what a token is believed to cost: one step that stood still beside another process
# says little.
WINDOW = 9
# The steps of so many seconds tell which share of the processor the run has now; a single one, where it took longer.
RECENT_SECONDS = 10.0


class Estimate:
    """Counts tokens, not steps: rows differ in length, and a short last batch would mislead."""

    def __init__(self, tokens_total: int, tokens_done: int) -> None:
        self._total = tokens_total
        self._done = tokens_done
        self._cost_a_token: deque[float] = deque(maxlen=WINDOW)
        self._recent: deque[tuple[float, float]] = deque()
        self._steps_seen = 0
        self._progress = 0.0
        # What the first guess at the training's seconds was, to be shown beside what they came to.
        self.first_total: float | None = None

    def step(self, tokens: int, seconds: float, cpu_seconds: float | None = None) -> None:
        """`cpu_seconds`: what the processor gave to the step. A token costs about the same of them, however busy the
        machine is, so the
        estimate follows at once when answers begin or cease to take the cores. None where a GPU does the work."""
        self._done += tokens
        self._steps_seen += 1
        # The first step also warms caches and allocators up; it is no measure of the others.
        if self._steps_seen > 1:
            cost = seconds if cpu_seconds is None else cpu_seconds
            self._cost_a_token.append(cost / tokens)
            self._recent.append((cost, seconds))
            while len(self._recent) > 1 and sum(seconds for _, seconds in self._recent) > RECENT_SECONDS:
                self._recent.popleft()
        if len(self._cost_a_token) == 2 and self.first_total is None:
            self.first_total = round(self._total * self._seconds_a_token(), 1)

    def seconds_left(self) -> float | None:
        """Seconds until the job ends, its conversion included. None before the third step."""
        if len(self._cost_a_token) < 2:
            return None
        return round((self._total - self._done) * self._seconds_a_token() + CLOSING_SECONDS, 1)

    def progress(self) -> float:
        """Share of the whole job's time that is behind it, 0 to 1; never goes back."""
        closing = CLOSING_SECONDS / self._seconds_a_token() if self._cost_a_token else 0.0
        self._progress = max(self._progress, self._done / (self._total + closing))
        return round(self._progress, 4)

    def _seconds_a_token(self) -> float:
        cost, seconds = (sum(each) for each in zip(*self._recent, strict=True))
        return median(self._cost_a_token) * seconds / max(cost, 1e-9)
