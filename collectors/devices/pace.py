"""How long the sampler rests between two samples, so that it never takes more than 1 % of the time.

A sample that took c is followed by at least c (1 - s) / s of rest, s the most that sampling may take.
"""

PERIOD_NS = 200_000_000
MOST_SHARE = 0.01
#: A few samples are always slow: the first ones load the driver's tables, others wait for the interpreter.
_MANY = 0.1


class Pace:
    """The rest after each sample, and what sampling has cost so far."""

    def __init__(self, period_ns: int = PERIOD_NS, most_share: float = MOST_SHARE) -> None:
        self.period_ns = period_ns
        self._most_share = most_share
        self.samples = self.slowed = 0
        self.cost_ns = self.rest_ns = 0

    def after(self, cost_ns: int) -> int:
        """The rest after a sample that took ``cost_ns``."""
        fair_ns = round(cost_ns * (1 - self._most_share) / self._most_share)
        rest_ns = max(self.period_ns, fair_ns)
        self.samples += 1
        self.slowed += fair_ns > self.period_ns
        self.cost_ns += cost_ns
        self.rest_ns += rest_ns
        return rest_ns

    def double(self) -> None:
        """Sample half as often from now on."""
        self.period_ns *= 2

    @property
    def had_to_slow(self) -> bool:
        """More than now and then."""
        return self.slowed > max(1, self.samples * _MANY)

    def account(self) -> str:
        """What sampling took, in words."""
        total_s = (self.cost_ns + self.rest_ns) / 1e9
        return (
            f"{self.slowed} of {self.samples} samples took so long that the next one had to wait; "
            f"all together took {self.cost_ns / 1e6:.0f} ms in {total_s:.0f} s"
        )
