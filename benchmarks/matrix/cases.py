"""What is planted where, and what came of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.diagnoses import (
    Diagnosed,
    base,
    diagnosed,
    planted,
    planted_beside_healthy,
    step_ns,
    true_saving_ns,
)
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Plan, Vendor

#: Causes that only show beside another run; padding on a CPU too, where its kernels look like all others.
BESIDE_HEALTHY = frozenset({Cause.LOW_BUS_BANDWIDTH, Cause.LOST_COMPUTE_EFFICIENCY})
BESIDE_HEALTHY_ON_CPU = BESIDE_HEALTHY | {Cause.UNEVEN_SHAPES}
HEALTHY = (Cause.NONE, Cause.TIGHT)
#: A cause that costs less of the step than this is not there: nothing need be found.
COSTS_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated job."""

    cause: Cause
    vendor: Vendor
    seed: int
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found: ``first`` of the findings above low confidence, ``others`` the causes behind it.

    ``true_ns`` is what the cause costs, None where it has no price; ``saving_ns`` what the finding says.
    """

    cause: str
    vendor: str
    seed: int
    strength: float
    first: str | None
    others: tuple[str, ...]
    wall_ns: float
    true_ns: float | None
    saving_ns: tuple[int, int] | None

    @property
    def is_there(self) -> bool:
        """Whether the cause costs enough to be found."""
        return self.true_ns is None or self.true_ns >= COSTS_RATIO * self.wall_ns

    @property
    def is_found(self) -> bool:
        """Whether it is the first finding."""
        return self.first == self.cause

    @property
    def is_priced(self) -> bool:
        """Whether its range holds what it costs."""
        if self.true_ns is None or self.saving_ns is None:
            return self.true_ns is None
        return self.saving_ns[0] <= self.true_ns <= self.saving_ns[1]

    @property
    def is_missed(self) -> bool:
        """Whether it is there, and not first or not within its range."""
        return self.is_there and not (self.is_found and self.is_priced)

    def tree(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "is_there": self.is_there}


def cases(
    causes: Sequence[Cause], vendors: Sequence[Vendor], seeds: int, strengths: Sequence[float]
) -> list[Case]:
    """All of them; healthy jobs have no strength."""
    return [
        Case(cause=cause, vendor=vendor, seed=seed, strength=strength)
        for cause, vendor, seed in product(causes, vendors, range(seeds))
        for strength in ((1.0,) if cause in HEALTHY else strengths)
    ]


def outcome(case: Case) -> Outcome:
    """Simulate the job, diagnose it, and see what its cause truly costs."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = _job(case, folder / "job")
        found = job.sure
        mine = next((f for f in found if f.cause == str(case.cause)), None)
        return Outcome(
            cause=str(case.cause),
            vendor=str(case.vendor),
            seed=case.seed,
            strength=case.strength,
            first=str(found[0].cause) if found else None,
            others=tuple(str(f.cause) for f in found[1:]),
            wall_ns=step_ns(job.truth),
            true_ns=_truth(case, folder / "truth"),
            saving_ns=mine.saving_ns if mine else None,
        )


def healthy_plan(seed: int, vendor: Vendor) -> Plan:
    """A healthy job: of 2 to 8 ranks, in any stage; new parameters are gathered under the next forward."""
    plan = replace(base(seed, vendor), ranks=(2, 4, 6, 8)[seed % 4], stage=seed // 4 % 4)
    return replace(plan, hide_optimizer_gather=True)


def _job(case: Case, folder: Path) -> Diagnosed:
    if case.cause in HEALTHY:
        return diagnosed(plant(healthy_plan(case.seed, case.vendor), case.cause), folder)
    plan = base(case.seed, case.vendor)
    beside = BESIDE_HEALTHY_ON_CPU if case.vendor is Vendor.GLOO else BESIDE_HEALTHY
    how = planted_beside_healthy if case.cause in beside else planted
    return how(case.cause, plan, folder, case.strength)


def _truth(case: Case, folder: Path) -> float | None:
    if case.cause in (*HEALTHY, Cause.MEASUREMENT_ARTIFACT):
        return None
    return true_saving_ns(case.cause, base(case.seed, case.vendor), folder, case.strength)
