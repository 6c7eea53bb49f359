"""Diagnose simulated jobs: what was planted, what was found, what each fix really saves.

:mod:`zprof.simulator` draws jobs without knowledge of the rules, and says what removing any cause saves,
planted or not.  So a finding of a cause that was not planted is judged like any other: by what its fix would
save.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from tests.support.diagnoses import device_with_room
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.memory import Memory
from zprof.run.reader import load
from zprof.simulator.ground_truth import draw_job, gain_ns, write_job
from zprof.simulator.job import CAUSES, SHAPES, Job

#: Shares of the step: a cause that costs less need not be found, and a fix that saves less is a false
#: accusation.
COSTS_RATIO, ACCUSES_RATIO = 0.02, 0.005
#: Causes within this share of each other's cost may both come first: no two recordings agree better.
TIED_RATIO = 0.05
#: Causes visible only in sizes and types of messages: a trace without them cannot show these.
SIZED = frozenset({"fp32_gather", "sharding_spans_nodes", "uneven_shapes"})
#: Shapes of recordings without a planted cause.
UNPLANTED = tuple(shape for shape in SHAPES if shape != "training")
#: An artifact of the recording has no fix that saves time.
UNPRICED = frozenset({"measurement_artifact"})
MIXED = (
    "no_prefetch+straggler_rank",
    "fp32_reduce+data_loader",
    "blocking_sync+straggler_rank",
    "fp32_gather+rotating_straggler",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCase:
    """One job: ``fault`` is a cause, two joined by "+", or None."""

    seed: int
    fault: str | None
    shape: str = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A finding above low confidence, with what its fix really saves; None if such a job cannot have it."""

    cause: str
    saving_ns: tuple[int, int]
    confidence: str
    true_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """zprof's answer for a job.

    ``planted``: cost per step of each planted cause.  ``is_recorded``: True if the traces contain its signs.
    """

    seed: int
    fault: str | None
    shape: str
    step_ns: int
    planted: dict[str, int]
    claims: tuple[Claim, ...]
    is_recorded: bool = True
    failure: str = ""

    @property
    def is_there(self) -> bool:
        """True if all planted causes cost enough to be found, and can be."""
        return self.costs_enough and self.is_recorded

    @property
    def costs_enough(self) -> bool:
        """True if all planted causes cost enough to be found."""
        return bool(self.planted) and min(self.planted.values()) >= COSTS_RATIO * self.step_ns

    @property
    def is_first(self) -> bool:
        """True if planted causes lead the findings; of two causes, both, with at most one other between them.

        A cause that was not planted may precede them if it costs as much or more.
        """
        left = set(self.planted)
        others = 0
        for claim in self.claims:
            left.discard(claim.cause)
            if not left:
                break
            cheapest = min(self.planted[cause] for cause in left)
            others += claim.cause not in self.planted and (claim.true_ns or 0) < (1 - TIED_RATIO) * cheapest
        return not left and others < len(self.planted)

    @property
    def is_strictly_first(self) -> bool:
        """True if the first finding was planted, no matter what else costs more."""
        return bool(self.claims) and self.claims[0].cause in self.planted

    @property
    def is_listed(self) -> bool:
        """True if all planted causes are among the findings."""
        return set(self.planted) <= {claim.cause for claim in self.claims}

    @property
    def is_priced(self) -> bool:
        """True if the ranges of the planted causes contain their costs."""
        ranges = {claim.cause: claim.saving_ns for claim in self.claims}
        return all(
            cause in ranges and (cause in UNPRICED or ranges[cause][0] <= cost <= ranges[cause][1])
            for cause, cost in self.planted.items()
        )

    @property
    def is_missed(self) -> bool:
        """True if anything went wrong: not first, out of its range, a false accusation or a crash."""
        found = not self.is_there or (self.is_first and self.is_priced)
        return not found or bool(self.accused) or bool(self.failure)

    @property
    def accused(self) -> tuple[str, ...]:
        """Causes that were reported, not planted, and whose fix would save next to nothing."""
        least = ACCUSES_RATIO * self.step_ns
        return tuple(
            claim.cause
            for claim in self.claims
            if claim.cause not in self.planted and (claim.true_ns is None or claim.true_ns < least)
        )


def list_job_cases(first_seed: int, jobs: int, causes: Sequence[str], unplanted_jobs: int) -> list[JobCase]:
    """Return ``jobs`` jobs per cause and pair, and ``unplanted_jobs`` per unplanted shape."""
    planted = [*causes, *(pair for pair in MIXED if set(pair.split("+")) <= set(causes))]
    seeds = range(first_seed, first_seed + jobs)
    cases = [JobCase(seed=seed, fault=fault) for fault in planted for seed in seeds]
    unplanted = range(first_seed, first_seed + unplanted_jobs)
    return [
        *cases,
        *(JobCase(seed=seed, fault=None, shape=shape) for shape in UNPLANTED for seed in unplanted),
    ]


def judge_job(case: JobCase, damage: Callable[[Path], None] | None = None) -> JobOutcome:
    """Simulate a job, import and diagnose its traces, and compute what the fixes of the findings would
    save.  ``damage`` may change the traces in their folder first.
    """
    job = draw_job(case.seed, case.fault, case.shape)
    with TemporaryDirectory() as name:
        folder = Path(name)
        truth = write_job(job, folder / "job")
        if damage is not None:
            damage(folder / "job")
        by_window = "measurement_artifact" in truth.planted
        savings = truth.window_saving_ns if by_window else truth.saving_ns
        planted = {cause: savings[cause] or 0 for cause in truth.planted}
        try:
            claims, failure = _list_claims(folder, job, truth.planted, savings), ""
        except Exception as error:  # a crash is the worst answer: it is counted, and the table continues
            claims, failure = (), f"{type(error).__name__}: {error}"
    return JobOutcome(
        seed=case.seed,
        fault=case.fault,
        shape=case.shape,
        step_ns=truth.window_time_ns if by_window else truth.step_time_ns,
        planted=planted,
        claims=claims,
        is_recorded=job.dialect.metadata or SIZED.isdisjoint(job.faults),
        failure=failure,
    )


def _list_claims(
    folder: Path, job: Job, planted: Sequence[str], savings: dict[str, int | None]
) -> tuple[Claim, ...]:
    before = folder / "job" / "baseline"
    baseline = _analyse_traces(before, folder / "before.zprof") if before.is_dir() else None
    for file in before.iterdir() if before.is_dir() else ():
        file.unlink()
    report = diagnose(add_user_facts(_analyse_traces(folder / "job", folder / "job.zprof"), job), baseline)
    return tuple(
        Claim(
            cause=str(finding.cause),
            saving_ns=finding.saving_ns,
            confidence=str(finding.confidence),
            true_ns=savings[finding.cause]
            if finding.cause in planted
            else _true_gain_ns(job, str(finding.cause)),
        )
        for finding in report.findings
        if finding.confidence is not Confidence.LOW
    )


def add_user_facts(analysis: RunAnalysis, job: Job) -> RunAnalysis:
    """Return the analysis with facts that a user knows but no trace states.

    These are parameters, hosts and free device memory.  Each is added only for the causes whose proof needs
    it, such as free memory for a needless reshard.
    """
    if "sharding_spans_nodes" in job.faults:
        per_node = job.cluster.ranks_per_node
        analysis = replace(analysis, hosts={rank: f"host{rank // per_node}" for rank in range(job.world)})
    count = sum(block.params for block in job.blocks)
    if not {"uneven_shapes", "needless_reshard_after_forward"}.isdisjoint(job.faults):
        facts = replace(analysis.training, parameters=count, micro_batches=job.micro_batches)
        analysis = replace(analysis, training=facts)
    if "needless_reshard_after_forward" not in job.faults:
        return analysis
    return replace(
        analysis, memory=Memory(devices=tuple(device_with_room(rank, 8 * count) for rank in range(job.world)))
    )


def _true_gain_ns(job: Job, cause: str) -> int | None:
    return gain_ns(job, cause) if cause in CAUSES else None


def _analyse_traces(traces: Path, run: Path) -> RunAnalysis:
    files = sorted(path for path in traces.iterdir() if path.is_file() and path.name.startswith("rank"))
    import_paths(files, run)
    return analyse_time_only(load(run))


def tabulate_jobs(outcomes: Sequence[JobOutcome]) -> list[dict[str, Any]]:
    """Return the table: a row per planted cause or pair, and per unplanted shape."""
    groups: dict[tuple[str | None, str], list[JobOutcome]] = {}
    for each in outcomes:
        groups.setdefault((each.fault, each.shape), []).append(each)
    return [_make_row(fault, shape, group) for (fault, shape), group in groups.items()]


def _make_row(fault: str | None, shape: str, group: Sequence[JobOutcome]) -> dict[str, Any]:
    there = [each for each in group if each.is_there]
    return {
        "cause": fault or f"nothing ({shape})",
        "jobs": len(group),
        "there": len(there),
        "not_recorded": sum(each.costs_enough and not each.is_recorded for each in group),
        "not_recorded_first": sum(
            each.costs_enough and not each.is_recorded and each.is_first for each in group
        ),
        "first": sum(each.is_first for each in there),
        "strictly_first": sum(each.is_strictly_first for each in there),
        "listed": sum(each.is_listed for each in there),
        "priced": sum(each.is_priced for each in there),
        "headed_by": dict(
            Counter(each.claims[0].cause if each.claims else "nothing" for each in there if not each.is_first)
        ),
        "accused_jobs": sum(bool(each.accused) for each in group),
        "accused": dict(Counter(cause for each in group for cause in each.accused)),
        "failures": dict(Counter(each.failure for each in group if each.failure)),
    }


def format_job_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown, with the sums over all planted jobs."""
    lines = [
        "| planted | jobs | first | in the list | range holds it | headed by instead | accused wrongly |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['cause']} | {row['there'] or row['jobs']} | "
        + (f"{row['first']} | {row['listed']} | {row['priced']} | " if row["there"] else "| | | ")
        + f"{_format_counts(row['headed_by'])} | {_format_counts(row['accused'] | row['failures'])} |"
        for row in rows
    ]
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("there", "first", "strictly_first", "listed", "priced", "not_recorded")
    }
    if sums["there"]:
        shares = {name: f"{value / sums['there']:.1%}" for name, value in sums.items()}
        lines.append(
            f"| all | {sums['there']} | {sums['first']} ({shares['first']}) | {sums['listed']} "
            f"({shares['listed']}) | {sums['priced']} ({shares['priced']}) | "
            f"strictly first {sums['strictly_first']} ({shares['strictly_first']}) | |"
        )
        lines.append(
            f"\nNot in the table: {sums['not_recorded']} jobs whose traces do not hold what shows it."
        )
    return "\n".join(lines) + "\n"


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
