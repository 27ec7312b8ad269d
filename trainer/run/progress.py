"""A run's progress and its remaining time."""

from collections import deque
from statistics import median

# Saving and converting the adapter after the last step: 1.0 s measured for a 135M base on two cores, more when they are
# busy. Only the adapter is converted, so larger bases take little longer.
CLOSING_SECONDS = 2.0
# The cost of a token is the median over this many steps: a single step stalled by another process says little.
WINDOW = 9
# Steps of the last so many seconds, at least one, give the run's current share of the processor.
RECENT_SECONDS = 10.0


class Estimate:
    """Estimates from tokens, not steps: rows differ in length, and a short last batch would mislead."""

    def __init__(self, tokens_total: int, tokens_done: int) -> None:
        self._total = tokens_total
        self._done = tokens_done
        self._cost_a_token: deque[float] = deque(maxlen=WINDOW)
        self._recent: deque[tuple[float, float]] = deque()
        self._steps_seen = 0
        self._progress = 0.0
        # The first estimate of the training's seconds, to compare with the actual time.
        self.first_total: float | None = None

    def step(self, tokens: int, seconds: float, cpu_seconds: float | None = None) -> None:
        """Counts a step. `cpu_seconds`: processor time of the step, None on a GPU. A token needs about the same
        processor time however busy the machine is, so the estimate follows at once when other work starts or ends.
        """
        self._done += tokens
        self._steps_seen += 1
        # The first step also warms up caches and allocators, so it is not measured.
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
        """The finished share of the whole job's time, 0 to 1; never decreases."""
        closing = CLOSING_SECONDS / self._seconds_a_token() if self._cost_a_token else 0.0
        self._progress = max(self._progress, self._done / (self._total + closing))
        return round(self._progress, 4)

    def _seconds_a_token(self) -> float:
        cost, seconds = (sum(figures) for figures in zip(*self._recent, strict=True))
        return median(self._cost_a_token) * seconds / max(cost, 1e-9)
