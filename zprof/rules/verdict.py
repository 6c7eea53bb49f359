"""The answer in one word and one sentence.

Against a baseline: ``slower`` where the 95 % interval of the change lies above zero and the change is
at least 2 %; ``ok`` where the interval stays below +5 %; else ``inconclusive``.  Alone: ``risk`` where
a finding is sure enough, ``ok`` where the causes that need no baseline were tested and none found.
Without any timed step: what :mod:`~zprof.rules.memory.verdict` says of the peak.
"""

from collections.abc import Sequence

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Memory
from zprof.model.report import Comparison, RunFacts, StepTimeChange, Verdict, VerdictStatus
from zprof.model.time import Time, WindowPolicy
from zprof.model.units import format_ns, format_percent
from zprof.rules.claims import spoils
from zprof.rules.memory.verdict import of_memory

_SLOWER_RATIO = 0.02
_SAME_RATIO = 0.05
#: Causes that a run by itself must have been tested for before it is called ok.
_NEEDED = (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK, Cause.MEASUREMENT_ARTIFACT)
_TERMS = {
    "compute_ns": "compute",
    "exposed_wait_ns": "exposed wait",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle time",
    "unexplained_ns": "unexplained time",
}


def judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
) -> Verdict:
    """The verdict on a run; ``gaps`` are searched for causes that were not tested."""
    if not time.per_rank and memory is not None and memory.per_rank:
        status, sentence = _peak(run, memory, findings)
        return _verdict(status, f"{sentence}; no step was timed")
    if not time.per_rank:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"no step of {run.name} was timed")
    spoiled = next((f for f in findings if spoils(f)), None)
    if spoiled:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{_step(time)}: {spoiled.sentence}")
    sure = [f for f in findings if f.confidence is not Confidence.LOW and f.saving_ns[1] > 0]
    if comparison and comparison.step_time:
        return _compared(run, comparison, comparison.step_time, sure, gaps)
    return _alone(run, time, sure, gaps)


def judge_memory(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> Verdict:
    """The verdict on the memory of a run; with ranks missing it is never ok."""
    if not memory.per_rank:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"no memory of {run.name} was recorded")
    return _verdict(*_peak(run, memory, findings))


def _peak(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> tuple[VerdictStatus, str]:
    status, sentence = of_memory(memory, findings)
    if status is VerdictStatus.OK and len(run.ranks_loaded) < run.world_size:
        status = VerdictStatus.INCONCLUSIVE
    return status, f"{sentence}{_loaded(run)}"


def _compared(
    run: RunFacts,
    comparison: Comparison,
    times: StepTimeChange,
    sure: list[Finding],
    gaps: Sequence[Gap],
) -> Verdict:
    change = times.b_ns - times.a_ns
    low, high = (bound / times.a_ns for bound in times.ci95)
    head = (
        f"{format_ns(times.b_ns)} vs {format_ns(times.a_ns)} a step, {_signed(change / times.a_ns)} % "
        f"[{_signed(low, 1)}, {_signed(high, 1)}]{_loaded(run)}"
    )
    if any(gap.what == "step time interval" for gap in gaps):
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: too few steps to tell it from noise")
    if change >= _SLOWER_RATIO * times.a_ns and low > 0:
        why = sure[0].sentence if sure else _largest_term(comparison)
        return _verdict(VerdictStatus.SLOWER, f"{head}: {why}")
    if high < _SAME_RATIO:
        return _verdict(VerdictStatus.OK, head)
    suspect = f", though {sure[0].sentence}" if sure else ""
    return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: the steps vary too much to tell{suspect}")


def _alone(run: RunFacts, time: Time, sure: list[Finding], gaps: Sequence[Gap]) -> Verdict:
    head = f"{_step(time)}{_loaded(run)}"
    if sure:
        return _verdict(VerdictStatus.RISK, f"{head}: {sure[0].sentence}")
    not_tested = {word for gap in gaps if gap.what.startswith("rule") for word in _words(gap.what)}
    untested = [cause.value for cause in _NEEDED if cause.value in not_tested]
    if untested:
        seen = _unsplit(run, time)
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: {seen}not tested: {', '.join(untested)}")
    idle = _idle(time)
    if idle is not None:
        why = "and no rule says yet what the host does meanwhile"
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: {idle} of it nothing runs, {why}")
    whole = len(run.ranks_loaded) >= run.world_size
    status = VerdictStatus.OK if whole else VerdictStatus.INCONCLUSIVE
    return _verdict(status, f"{head}: no cause of lost time found{_exposure(time)}")


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _verdict(status: VerdictStatus, sentence: str) -> Verdict:
    return Verdict(status=status, sentence=f"{status.value.upper()} {sentence}")


def _largest_term(comparison: Comparison) -> str:
    term, change = max(comparison.ledger_delta.items(), key=lambda item: item[1])
    return f"no cause found; most of it is {_TERMS[term]} (+{format_ns(change)})"


def _step(time: Time) -> str:
    walls = [rank.wall_ns for rank in time.per_rank]
    whole = time.window is not None and time.window.policy is WindowPolicy.TRACE
    return f"{format_ns(sum(walls) / len(walls))} {'in all' if whole else 'a step'}"


def _idle(time: Time) -> str | None:
    """How much of the time is idle, where that is more than half of it."""
    idle = sum(rank.idle_ns + rank.unexplained_ns for rank in time.per_rank)
    wall = sum(rank.wall_ns for rank in time.per_rank)
    return format_percent(idle / wall) if 2 * idle > wall > 0 else None


def _unsplit(run: RunFacts, time: Time) -> str:
    """How much of the step is communication of which nobody can say whether it waited, where that is most."""
    ranks = time.per_rank
    unsplit = sum(rank.unsplit_ns for rank in ranks)
    exposed = sum(rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in ranks)
    if 2 * unsplit <= exposed:
        return ""
    missing = len(run.ranks_loaded) < run.world_size
    lacking = "without the other ranks" if missing else "as long as the ranks' collectives are not matched"
    return (
        f"{format_ns(exposed / len(ranks))} of it is exposed communication, and {lacking}, "
        "waiting and moving bytes cannot be told apart; "
    )


def _exposure(time: Time) -> str:
    total = sum(rank.collective_ns for rank in time.per_rank)
    if not total:
        return ""
    exposed = total - sum(rank.overlapped_ns for rank in time.per_rank)
    most = "at most " if any(rank.upper_bound for rank in time.per_rank) else ""
    return f" ({most}{format_percent(exposed / total)} of collective time is exposed)"


def _loaded(run: RunFacts) -> str:
    loaded = len(run.ranks_loaded)
    return f" on {loaded} of {run.world_size} ranks" if loaded < run.world_size else ""


def _signed(ratio: float, digits: int = 0) -> str:
    return f"{ratio * 100:+.{digits}f}"
