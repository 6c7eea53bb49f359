"""What a step wins when its units, or buckets, are made larger or smaller: seen now minus modelled then.

    saving = exposed now - exposed(model, n times the size) + what launching 1 - 1/n of them costs

What the model misses of the present (waking up, copies, jitter) comes with each message, so half of it is
taken to stay.  On a CPU rank launching is on the thread that computes: it costs at least the spans of the
launches, which count as its compute, and with what comes after a message (its thread picks it up, the main
one wakes) at most the idle time too.  Simulated steps came out within 5 % of the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.transfer.messages.pipeline import Pass, depth_of, exposed_ns
from zprof.rules.transfer.messages.traffic import Traffic

_ERROR_RATIO = 0.05
_MISSED_RATIO = 0.5
#: Of the step: a saving whose middle is below this is a guess.
SURE_RATIO = 0.02
#: Sizes that are tried, as multiples of the present one.
LARGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as it is: what shows of its traffic, how far ahead it gathers, and what the model misses."""

    traffic: Traffic
    ahead: int
    exposed_ns: float
    missed_ns: float
    idle_ns: float

    @property
    def forward_ns(self) -> float:
        """Compute of one forward pass, where a backward takes twice as long."""
        return self.traffic.resized(1)[0].compute_ns

    def then_ns(self, times: float) -> tuple[float, float]:
        """What shows when messages are so many times as large: at least, and at most."""
        least, most = self.shown_ns(self.traffic.resized(times))
        after = self.traffic.after_ns(times)
        return (least + after, most + after)

    def shown_ns(self, passes: Sequence[Pass]) -> tuple[float, float]:
        """What shows of passes, the gather at the turn from forward to backward hidden, or not.

        Engines differ in whether it waits until the unit was dropped.
        """
        hidden = [replace(one, turns=False) for one in passes]
        return (exposed_ns(hidden, self.ahead), exposed_ns(passes, self.ahead))

    def saving_ns(self, sizes: Sequence[float]) -> tuple[float, float]:
        """Bounds over these sizes."""
        bounds = [self._saving(times) for times in sizes]
        return self.bounded(min(low for low, _ in bounds), max(high for _, high in bounds))

    def _saving(self, times: float) -> tuple[float, float]:
        least, most = self.then_ns(times)
        gone = 1 - 1 / times
        launch = self.traffic.launch_ns * gone
        # more messages are launched while the link is busy, and may cost nothing
        idle = max(0.0, launch, launch + self.idle_ns * gone) if self.traffic.launch_ns else 0.0
        low = self.exposed_ns - most - _MISSED_RATIO * self.missed_ns + launch
        return (low, self.exposed_ns - least + idle)

    def bounded(self, low: float, high: float) -> tuple[float, float]:
        """With the model's error, not below 0 and not above what there is."""
        launched = self.traffic.launch_ns
        most = self.exposed_ns + (self.idle_ns + launched if launched else 0.0)
        high = min((1 + _ERROR_RATIO) * high, most)
        return (max(0.0, min((1 - _ERROR_RATIO) * low, high)), max(0.0, high))


def step_of(analysis: RunAnalysis, traffic: Traffic) -> Step:
    """The step of a run."""
    seen = traffic.exposed_ns
    passes = traffic.resized(1)
    ahead = depth_of(passes, seen - traffic.after_ns(1))
    modelled = exposed_ns(passes, ahead) + traffic.after_ns(1)
    return Step(
        traffic=traffic,
        ahead=ahead,
        exposed_ns=seen,
        missed_ns=max(0.0, seen - modelled),
        idle_ns=float(analysis.steps["idle_ns"].mean()) if len(analysis.steps) else 0.0,
    )


def is_guess(saving: tuple[float, float], wall: float) -> bool:
    """Whether next to nothing, or nothing at all, may be won."""
    return saving[0] <= 0 or sum(saving) / 2 < SURE_RATIO * wall


def enough(step: Step, most: float) -> Iterable[float]:
    """From the smallest multiple that helps most to four times that, as far as messages are left to merge."""
    sizes = [times for times in LARGER if times <= most]
    if not sizes:
        return ()
    shown = {times: step.then_ns(times)[1] for times in sizes}
    best = min(sizes, key=lambda times: (shown[times], times))
    return [times for times in sizes if best <= times <= 4 * best]
