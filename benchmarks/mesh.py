"""Diagnose simulated jobs of several dimensions: is the planted cause first, and is its saving right?

    python -m benchmarks.mesh [--causes NAME ...] [--seeds 1000 8] [--healthy 8] [--vendor amd] [--list]

Each seed is a random job of :mod:`zprof.simulator.mesh.draw` with one planted cause. *Recorded*: the cause
costs at least 2 % of the step. *First*: of these, the first finding above low confidence is the cause.
*Priced*: the range of its saving contains what its removal saves. *Accused*, of jobs without a planted cause:
a finding has more than low confidence.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from zprof.analysis.analysis import analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.run.reader import load
from zprof.simulator.job import Job, Vendor
from zprof.simulator.mesh.draw import draw_mesh_job
from zprof.simulator.mesh.faults import MESH_CAUSES
from zprof.simulator.mesh.truth import write_mesh_job

#: A cause that costs less of the step need not be found.
_MIN_COST_RATIO = 0.02
_COLUMNS = ("jobs", "recorded", "first", "priced", "failed")


class MeshCase(Struct, frozen=True):
    """A job to draw; ``cause`` is None for a healthy one."""

    seed: int
    cause: str | None
    vendor: Vendor = "nvidia"


class MeshClaim(Struct, frozen=True, kw_only=True):
    """A finding: its cause, confidence, and range of its saving in ns per step."""

    cause: str
    confidence: Confidence
    saving_ns: tuple[int, int]
    sentence: str


class MeshOutcome(Struct, frozen=True, kw_only=True):
    """The answer for a job; ``true_ns``: what removing the planted cause saves per step."""

    case: MeshCase
    shape: str = ""
    step_ns: int = 0
    true_ns: int = 0
    claims: tuple[MeshClaim, ...] = ()
    failure: str = ""

    @property
    def sure(self) -> list[MeshClaim]:
        """Findings above low confidence, except those about the recording (profilers start apart)."""
        return [
            claim
            for claim in self.claims
            if claim.confidence is not Confidence.LOW and claim.cause != "measurement_artifact"
        ]

    @property
    def is_recorded(self) -> bool:
        """True if the planted cause costs enough to be found."""
        return self.true_ns >= _MIN_COST_RATIO * self.step_ns

    @property
    def is_first(self) -> bool:
        """True if the first finding above low confidence is the planted cause."""
        return bool(self.sure) and self.sure[0].cause == self.case.cause

    @property
    def is_priced(self) -> bool:
        """True if the range of the planted cause contains its true saving."""
        return any(
            claim.cause == self.case.cause and claim.saving_ns[0] <= self.true_ns <= claim.saving_ns[1]
            for claim in self.claims
        )


def main() -> None:
    """Draw, diagnose, and print one line per job and the table."""
    arguments = _parse_arguments()
    first, count = arguments.seeds
    planted = ((seed, cause) for cause in arguments.causes for seed in range(first, first + count))
    healthy = ((seed, None) for seed in range(first, first + arguments.healthy))
    jobs = [*planted, *healthy]
    cases = [MeshCase(*job, vendor) for vendor in arguments.vendor for job in jobs]
    outcomes = []
    context = get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for outcome in pool.map(judge_case, cases):
            outcomes.append(outcome)
            if arguments.list or not _is_right(outcome):
                print(describe_outcome(outcome), flush=True)
    print(format_table(outcomes))


def judge_case(case: MeshCase) -> MeshOutcome:
    """Draw, write, import and diagnose a job; never raises."""
    try:
        job = draw_mesh_job(case.seed, case.cause, case.vendor)
        with TemporaryDirectory() as folder:
            truth = write_mesh_job(job, Path(folder) / "traces")
            import_paths([Path(folder) / "traces"], Path(folder) / "run")
            report = diagnose(analyse_time_only(load(Path(folder) / "run")))
        return MeshOutcome(
            case=case,
            shape=_describe_shape(job),
            step_ns=truth.step_time_ns,
            true_ns=truth.saving_ns.get(case.cause or "") or 0,
            claims=tuple(
                MeshClaim(
                    cause=each.cause,
                    confidence=each.confidence,
                    saving_ns=each.saving_ns,
                    sentence=each.sentence,
                )
                for each in report.findings
            ),
        )
    except Exception as error:  # one bad job must not end the others
        return MeshOutcome(case=case, failure=f"{type(error).__name__}: {error}")


def _describe_shape(job: Job) -> str:
    parallel = job.parallel
    assert parallel is not None
    sizes = {name: getattr(parallel.degrees, name) for name in parallel.degrees.__slots__}
    dims = ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    return f"{dims} {parallel.schedule} v{parallel.virtual} m{job.micro_batches} {parallel.framework}"


def _is_right(outcome: MeshOutcome) -> bool:
    if outcome.failure:
        return False
    if outcome.case.cause is None:
        return not outcome.sure
    return not outcome.is_recorded or (outcome.is_first and outcome.is_priced)


def describe_outcome(outcome: MeshOutcome) -> str:
    """Return the lines of a job: what it is, and each finding."""
    case = outcome.case
    title = f"{case.cause or 'healthy'} {case.seed} {case.vendor}"
    if outcome.failure:
        return f"{title}: FAILED {outcome.failure}"
    name = "right" if _is_right(outcome) else "WRONG"
    if case.cause and outcome.is_recorded and not _is_right(outcome):
        parts = (("first", outcome.is_first), ("priced", outcome.is_priced))
        name = "not " + ", not ".join(part for part, is_met in parts if not is_met)
    lines = [f"{title} ({outcome.shape}): {name}; truth {_ms(outcome.true_ns)} of {_ms(outcome.step_ns)} ms"]
    lines += [
        f"    {each.cause} ({each.confidence}) {_ms(each.saving_ns[0])}..{_ms(each.saving_ns[1])} ms: "
        f"{each.sentence}"
        for each in outcome.claims
    ]
    return "\n".join(lines)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"


def format_table(outcomes: Sequence[MeshOutcome]) -> str:
    """Return one line per cause, and one for healthy jobs."""
    parts: dict[str, list[MeshOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.case.cause:
            parts[outcome.case.cause].append(outcome)
    healthy = [outcome for outcome in outcomes if outcome.case.cause is None]
    lines = [f"{'':28}" + "".join(f"{column:>10}" for column in _COLUMNS)]
    lines += [_format_row(name, _count(part)) for name, part in parts.items()]
    if len(parts) > 1:
        lines.append(_format_row("all", _count([each for part in parts.values() for each in part])))
    if healthy:
        accused = sum(bool(outcome.sure) for outcome in healthy)
        failed = sum(bool(outcome.failure) for outcome in healthy)
        lines.append(f"healthy: {len(healthy)} jobs, {accused} accused, {failed} failed")
    return "\n".join(lines)


def _count(outcomes: Sequence[MeshOutcome]) -> tuple[int, ...]:
    recorded = [outcome for outcome in outcomes if outcome.is_recorded]
    return (
        len(outcomes),
        len(recorded),
        sum(outcome.is_first for outcome in recorded),
        sum(outcome.is_priced for outcome in recorded),
        sum(bool(outcome.failure) for outcome in outcomes),
    )


def _format_row(name: str, counts: Iterable[int]) -> str:
    return f"{name:28}" + "".join(f"{count:>10}" for count in counts)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--causes", nargs="*", choices=MESH_CAUSES, default=list(MESH_CAUSES))
    parser.add_argument("--seeds", nargs=2, type=int, default=(560_000, 12), metavar=("FIRST", "COUNT"))
    parser.add_argument("--healthy", type=int, default=12, help="jobs without a planted cause")
    parser.add_argument("--vendor", nargs="+", choices=("nvidia", "amd"), default=("nvidia",))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print each job, not only wrong ones")
    return parser.parse_args()


if __name__ == "__main__":
    main()
