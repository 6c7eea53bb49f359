"""A check: what was allowed, what was measured, and whether it holds (schema ``zprof.check/1``).

Values are leaves of the report; times integer nanoseconds, sizes integer bytes, ratios floats.
"""

from dataclasses import dataclass
from enum import StrEnum

CHECK_SCHEMA = "zprof.check/1"
#: The origin of a limit that nobody stated.
DEFAULT = "default"


class Outcome(StrEnum):
    """How a gate ended.  ``skipped``: there was nothing to hold it against, which is no failure.

    ``within_noise``: the value is beyond the limit, and by no more than its steps vary: it fails nothing, and
    it does not say that the limit holds.  ``unknown``: what it asks for should have been measured and was
    not, or too rarely: never green.
    """

    PASSED = "passed"
    WITHIN_NOISE = "within_noise"
    WARNED = "warned"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


class Sense(StrEnum):
    """Which side of a limit is allowed."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is allowed of one quantity.

    ``gate``: peak_memory, peak_memory.<tenant>, untagged_ratio, exposed_ratio, overlap_ratio,
    collective_bytes, collective_count, collective_bytes_law, step_time, exposed_wait.
    Either ``value`` (absolute, in ``unit``), ``change_ratio`` (of the baseline: 0.02 is 2 % more) or
    ``change_points`` (added to the baseline's ratio) is set.  ``confidence``: it fails only where the
    interval of that confidence is beyond the limit; None: the value itself is compared.  ``warns``: beyond it
    is a warning, no failure.  ``said`` is the limit as it was written, ``origin`` where ("default",
    "pyproject.toml", "--peak-memory").
    """

    gate: str
    unit: str
    sense: Sense = Sense.AT_MOST
    value: float | None = None
    change_ratio: float | None = None
    change_points: float | None = None
    confidence: float | None = None
    warns: bool = False
    said: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One gate.

    ``value`` is the leaf ``leaf`` of the report of this run, ``baseline`` the same of the baseline,
    ``allowed`` the limit in ``unit``; None where it is not known or there is none.  ``interval``: of value -
    baseline.  ``subject``: whose it is: the rank, tenant or collective.  ``grew``: what grew most below it,
    in words.  ``noise``: half the width of that interval where it is more than the limit leaves room for: a
    change as large as the limit then never fails.  ``sentence`` says all of that in one line; ``remedy`` what
    to do where it is unknown or skipped.
    """

    limit: Limit
    outcome: Outcome
    subject: str = ""
    value: float | None = None
    baseline: float | None = None
    allowed: float | None = None
    interval: tuple[float, float] | None = None
    leaf: str = ""
    grew: str = ""
    noise: float | None = None
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """All gates of one run.  ``baseline`` is None on a first run; ``notices`` are for who reads the log."""

    schema: str = CHECK_SCHEMA
    zprof_version: str
    run: str
    baseline: str | None
    outcome: Outcome
    results: tuple[GateResult, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 where a gate failed, 3 where one could not be judged, else 0."""
        return {Outcome.FAILED: 1, Outcome.UNKNOWN: 3}.get(self.outcome, 0)
