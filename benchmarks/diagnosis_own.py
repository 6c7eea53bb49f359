"""Diagnose regular jobs with one or two planted causes, and tabulate a confusion matrix."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
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
from zprof.simulator.job import HEALTHY, Job, Vendor
from zprof.simulator.regular import plant

#: Causes visible only in comparison; on a CPU also padding, whose kernels look like all others there.
BESIDE_HEALTHY = frozenset({"low_bus_bandwidth", "lost_compute_efficiency"})
BESIDE_HEALTHY_ON_CPU = BESIDE_HEALTHY | {"uneven_shapes"}
#: A cause that costs a smaller share of the step counts as absent: nothing need be found.
COSTS_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated job."""

    cause: str
    vendor: Vendor
    seed: int
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Findings of a job: ``first`` of those above low confidence, ``others`` the causes after it.

    ``true_ns`` is the cost of the cause, None if it has no price; ``saving_ns`` is the finding's range.
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
        """True if the cause costs enough to be found."""
        return self.true_ns is None or self.true_ns >= COSTS_RATIO * self.wall_ns

    @property
    def is_found(self) -> bool:
        """True if the cause is the first finding."""
        return self.first == self.cause

    @property
    def is_priced(self) -> bool:
        """True if the finding's range contains the cost of the cause."""
        if self.true_ns is None or self.saving_ns is None:
            return self.true_ns is None
        return self.saving_ns[0] <= self.true_ns <= self.saving_ns[1]

    @property
    def is_missed(self) -> bool:
        """True if the cause is there, and is not first or not within its range."""
        return self.is_there and not (self.is_found and self.is_priced)

    def tree(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return {**asdict(self), "is_there": self.is_there}


def list_cases(
    causes: Sequence[str], vendors: Sequence[Vendor], seeds: int, strengths: Sequence[float]
) -> list[Case]:
    """Return all cases; healthy jobs have one strength."""
    return [
        Case(cause=cause, vendor=vendor, seed=seed, strength=strength)
        for cause, vendor, seed in product(causes, vendors, range(seeds))
        for strength in ((1.0,) if cause in HEALTHY else strengths)
    ]


def diagnose_case(case: Case) -> Outcome:
    """Simulate the job, diagnose it, and compute what its cause really costs."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = _diagnose_job(case, folder)
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
            true_ns=_true_saving_ns(case.cause, job.job),
            saving_ns=mine.saving_ns if mine else None,
        )


def healthy_job(seed: int, vendor: Vendor) -> Job:
    """Return a healthy job of 2 to 8 ranks in any stage, with parameters gathered under the next forward."""
    ranks, stage = (2, 4, 6, 8)[seed % 4], seed // 4 % 4
    return base(seed, vendor, ranks=ranks, stage=stage, optimizer_gather="hidden")


def _diagnose_job(case: Case, folder: Path) -> Diagnosed:
    if case.cause in HEALTHY:
        return diagnosed(plant(healthy_job(case.seed, case.vendor), case.cause), folder)
    beside = BESIDE_HEALTHY_ON_CPU if case.vendor == "gloo" else BESIDE_HEALTHY
    how = planted_beside_healthy if case.cause in beside else planted
    return how(case.cause, base(case.seed, case.vendor), folder, case.strength)


def _true_saving_ns(cause: str, job: Job) -> float | None:
    return None if cause in (*HEALTHY, "measurement_artifact") else true_saving_ns(cause, job)


#: Causes that leave each other's signs intact: of two that change the same thing, only the second is visible.
PAIRS = (
    ("no_prefetch", "straggler_rank"),
    ("fp32_reduce", "straggler_rank"),
    ("fp32_reduce", "data_loader"),
    ("checkpoint_regathers", "data_loader"),
    ("accumulation_syncs", "straggler_rank"),
    ("copy_overhead", "data_loader"),
    ("no_prefetch", "rotating_straggler"),
    ("single_unit", "data_loader"),
)
_FIRST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCase:
    """One job with two causes."""

    causes: tuple[str, str]
    vendor: Vendor
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """The causes found above low confidence, in order."""

    causes: tuple[str, str]
    vendor: str
    seed: int
    found: tuple[str, ...]

    @property
    def are_both_found(self) -> bool:
        """True if both are among the first three."""
        return set(self.causes) <= set(self.found[:_FIRST])


def list_pair_cases(vendors: Sequence[Vendor], seeds: int) -> list[PairCase]:
    """Return all pairs on all vendors."""
    return [
        PairCase(causes=causes, vendor=vendor, seed=seed)
        for causes, vendor, seed in product(PAIRS, vendors, range(seeds))
    ]


def diagnose_pair(case: PairCase) -> PairOutcome:
    """Plant both causes and diagnose the job."""
    job = base(case.seed, case.vendor)
    for cause in case.causes:
        job = plant(job, cause)
    with TemporaryDirectory() as folder:
        found = tuple(str(f.cause) for f in diagnosed(job, Path(folder)).sure)
    first, second = map(str, case.causes)
    return PairOutcome(causes=(first, second), vendor=str(case.vendor), seed=case.seed, found=found)


def format_pair_table(outcomes: Sequence[PairOutcome]) -> str:
    """Return a table with one line per pair."""
    groups: dict[tuple[str, str], list[PairOutcome]] = {}
    for each in outcomes:
        groups.setdefault(each.causes, []).append(each)
    lines = ["| two at once | both among the first three |", "|---|---|"]
    for causes, group in groups.items():
        both = sum(each.are_both_found for each in group)
        lines.append(f"| {' and '.join(causes)} | {both} of {len(group)} |")
    return "\n".join(lines) + "\n"


def tabulate_outcomes(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return one row per cause and vendor, in order of appearance."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault((each.cause, each.vendor), []).append(each)
    return [_make_row(cause, vendor, group) for (cause, vendor), group in groups.items()]


def _make_row(cause: str, vendor: str, group: Sequence[Outcome]) -> dict[str, Any]:
    there = [each for each in group if each.is_there]
    found = [each for each in there if each.is_found]
    return {
        "cause": cause,
        "vendor": vendor,
        "jobs": len(group),
        "there": len(there),
        "first": len(found),
        "priced": sum(each.is_priced for each in found),
        "taken_for": dict(Counter(each.first or "nothing" for each in there if not each.is_found)),
        "accused_without_cost": dict(
            Counter(each.first for each in group if not each.is_there and each.first not in (None, cause))
        ),
    }


def format_matrix(table: Sequence[dict[str, Any]]) -> str:
    """Return a line per cause: in how many of the jobs where it costs enough it was first, and priced."""
    vendors = list(dict.fromkeys(row["vendor"] for row in table))
    lines = [
        "| planted | " + " | ".join(f"{vendor}: first, priced" for vendor in vendors) + " | taken for |",
        "|---" * (len(vendors) + 2) + "|",
    ]
    by_cause: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table:
        by_cause.setdefault(row["cause"], {})[row["vendor"]] = row
    for cause, cells in by_cause.items():
        shown = [_cell(cells[vendor]) if vendor in cells else "" for vendor in vendors]
        lines.append(f"| {cause} | {' | '.join(shown)} | {_format_mistaken(cells.values())} |")
    return "\n".join(lines) + "\n"


def format_healthy_table(table: Sequence[dict[str, Any]]) -> str:
    """Return a table of healthy jobs with the number of false accusations."""
    lines = ["| healthy | jobs | accused |", "|---|---|---|"]
    for row in table:
        accused = {name: count for name, count in row["taken_for"].items() if name != "nothing"}
        counts = ", ".join(f"{name} {count}" for name, count in accused.items()) or "0"
        lines.append(f"| {row['cause']}, {row['vendor']} | {row['jobs']} | {counts} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    if not row["there"]:
        return "costs nothing there"
    return f"{row['first']} of {row['there']}, {row['priced']}"


def _format_mistaken(cells: Iterable[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for row in cells:
        total.update(row["taken_for"])
    return ", ".join(f"{name} {count}" for name, count in total.most_common())
