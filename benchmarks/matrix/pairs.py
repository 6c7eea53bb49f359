"""Two causes planted in one job: both must be among the first three findings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.diagnoses import base, diagnosed
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Vendor

#: Causes that leave each other's sign in place: of two that change the same thing only the second is there.
PAIRS = (
    (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK),
    (Cause.FP32_REDUCE, Cause.STRAGGLER_RANK),
    (Cause.FP32_REDUCE, Cause.DATA_LOADER),
    (Cause.CHECKPOINT_REGATHERS, Cause.DATA_LOADER),
    (Cause.ACCUMULATION_SYNCS, Cause.STRAGGLER_RANK),
    (Cause.COPY_OVERHEAD, Cause.DATA_LOADER),
    (Cause.NO_PREFETCH, Cause.ROTATING_STRAGGLER),
    (Cause.SINGLE_UNIT, Cause.DATA_LOADER),
)
_FIRST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCase:
    """One job with two causes."""

    causes: tuple[Cause, Cause]
    vendor: Vendor
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """The causes found, those of low confidence left out, the first one first."""

    causes: tuple[str, str]
    vendor: str
    seed: int
    found: tuple[str, ...]

    @property
    def are_both_found(self) -> bool:
        """Whether both are among the first three."""
        return set(self.causes) <= set(self.found[:_FIRST])


def pair_cases(vendors: Sequence[Vendor], seeds: int) -> list[PairCase]:
    """All of them."""
    return [
        PairCase(causes=causes, vendor=vendor, seed=seed)
        for causes, vendor, seed in product(PAIRS, vendors, range(seeds))
    ]


def pair_outcome(case: PairCase) -> PairOutcome:
    """Plant one, then the other, and diagnose."""
    plan = base(case.seed, case.vendor)
    for cause in case.causes:
        plan = plant(plan, cause)
    with TemporaryDirectory() as folder:
        found = tuple(str(f.cause) for f in diagnosed(plan, Path(folder)).sure)
    first, second = map(str, case.causes)
    return PairOutcome(causes=(first, second), vendor=str(case.vendor), seed=case.seed, found=found)


def pairs_markdown(outcomes: Sequence[PairOutcome]) -> str:
    """A line a pair."""
    groups: dict[tuple[str, str], list[PairOutcome]] = {}
    for each in outcomes:
        groups.setdefault(each.causes, []).append(each)
    lines = ["| two at once | both among the first three |", "|---|---|"]
    for causes, group in groups.items():
        both = sum(each.are_both_found for each in group)
        lines.append(f"| {' and '.join(causes)} | {both} of {len(group)} |")
    return "\n".join(lines) + "\n"
