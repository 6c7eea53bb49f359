"""Compare a job with itself without one of its two causes: is the cause that changed named, at what it adds?

    python -m benchmarks.before_after [--jobs 3] [--first-seed 1000] [--pairs A+B ...] [--show]

Each job of :mod:`zprof.simulator` has two causes planted. One of them is removed for the baseline, the other
one is there in both. *First* counts the cases in which the cause that changed is the first finding, *because*
those in which it is also the reason that a verdict of slower gives (of so many: few steps often do not allow
one), *range* those in which its range holds the true difference of the step times. Writes
``benchmarks/results/before-after-DATE.json`` if all pairs were drawn.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis import spread
from benchmarks.diagnosis_jobs import MIXED, add_user_facts
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.report import VerdictStatus
from zprof.run.reader import load
from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import draw_job, step_time_ns
from zprof.simulator.job import Job
from zprof.simulator.kineto import write_traces
from zprof.simulator.run import run_job

RESULTS = Path(__file__).parent / "results"
PAIRS = (
    *MIXED,
    "no_prefetch+data_loader",
    "last_unit_regathered+no_prefetch",
    "accumulation_syncs+straggler_rank",
    "blocking_sync+data_loader",
    "fp32_reduce+straggler_rank",
    "copy_overhead+no_prefetch",
)
#: A difference below this share of the step is no difference that a user asks about.
MIN_CHANGE_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, and which of its causes the baseline has not."""

    seed: int
    pair: str
    changed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one case; ``true_ns`` is what the cause adds to the step."""

    case: Case
    true_ns: int
    step_ns: int
    status: str
    first: str
    change_ns: tuple[int, int] | None
    is_because: bool
    sentence: str

    @property
    def is_first(self) -> bool:
        """Whether the cause that changed is the first finding."""
        return self.first == self.case.changed

    @property
    def is_in_range(self) -> bool:
        """Whether the range of what it adds holds the truth."""
        return self.change_ns is not None and self.change_ns[0] <= self.true_ns <= self.change_ns[1]


def main() -> None:
    """Draw, simulate, compare, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3, help="of each pair")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--pairs", nargs="+", default=[])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    cases = [
        Case(seed=seed, pair=pair, changed=changed)
        for pair in arguments.pairs or PAIRS
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.jobs)
        for changed in pair.split("+")
    ]
    found = spread(judge_case, cases, arguments.processes)
    outcomes = [each for each in found if each.true_ns >= MIN_CHANGE_RATIO * each.step_ns]
    print(f"cases: {len(outcomes)} of {len(cases)} with a difference")
    print(f"first: {sum(each.is_first for each in outcomes)}")
    slower = [each for each in outcomes if each.status == VerdictStatus.SLOWER]
    print(f"because: {sum(each.is_because for each in slower)} of {len(slower)}")
    print(f"range: {sum(each.is_in_range for each in outcomes)}")
    for each in outcomes:
        if arguments.show or not (each.is_first and each.is_in_range):
            print(
                f"{each.case.pair} {each.case.seed} changed {each.case.changed} {each.true_ns / 1e6:.1f} ms: "
                f"{each.status}, first {each.first}, {each.change_ns}\n    {each.sentence}"
            )
    if not arguments.pairs:
        document = {
            "conditions": conditions(),
            "benchmark": "before_after",
            "first_seed": arguments.first_seed,
            "rows": [asdict(each) for each in outcomes],
        }
        (RESULTS / f"before-after-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def judge_case(case: Case) -> Outcome:
    """Simulate the job with and without one cause, and diagnose the one against the other."""
    job = draw_job(case.seed, case.pair)
    before = remove(job, case.changed)
    assert before is not None
    with TemporaryDirectory() as name:
        after_run, after_ns = _record(job, Path(name, "after"))
        before_run, before_ns = _record(before, Path(name, "before"))
        report = diagnose(add_user_facts(after_run, job), add_user_facts(before_run, job))
    own = next((each for each in report.findings if each.cause == case.changed), None)
    is_slower = report.verdict.status is VerdictStatus.SLOWER
    return Outcome(
        case=case,
        true_ns=after_ns - before_ns,
        step_ns=after_ns,
        status=report.verdict.status.value,
        first=report.findings[0].cause if report.findings else "",
        change_ns=None if own is None else own.change_ns,
        is_because=own is not None and own.sentence in report.verdict.sentence and is_slower,
        sentence=report.verdict.sentence,
    )


def _record(job: Job, folder: Path) -> tuple[RunAnalysis, int]:
    schedule = run_job(job)
    folder.mkdir()
    paths = write_traces(schedule, folder, range(job.world))
    run = folder.with_suffix(".zprof")
    import_paths(paths, run)
    return analyse_time_only(load(run)), step_time_ns(schedule)


if __name__ == "__main__":
    main()
