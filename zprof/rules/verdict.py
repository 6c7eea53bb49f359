"""The answer in one word and one sentence.

Against a baseline: what :mod:`~zprof.rules.compared` says, and ``inconclusive`` where the times of the two
are not of the same thing.  Alone: ``risk`` where a finding is sure enough, ``ok`` where the causes that need
no baseline were tested and none found, else ``inconclusive``.  An ``ok`` says how much of the step is exposed
where that is a tenth or more: none of it may be lost by a fault, and it is what a faster link would win.
Without any timed step: what :mod:`~zprof.rules.memory.verdict` says of the peak.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.comparison import NOT_COMPARED
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Memory
from zprof.model.report import Comparison, RunFacts, Verdict, VerdictStatus
from zprof.model.time import Time, WindowPolicy
from zprof.model.units import format_ns, format_percent
from zprof.rules.claims import spoils
from zprof.rules.compared import compared
from zprof.rules.memory.verdict import of_memory
from zprof.rules.rule import Rule, untested

#: Causes that a run by itself must have been tested for before it is called ok.
_NEEDED = (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK, Cause.MEASUREMENT_ARTIFACT)
#: What can keep a device without work: before they were tested nothing is said of idle time.
_IDLE = (Cause.CPU_BOUND_LAUNCH, Cause.BLOCKING_SYNC, Cause.DATA_LOADER, Cause.ALLOCATOR_RETRIES)

_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns")
_LOST = {
    "exposed_wait_ns": "exposed wait",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle",
}
#: Of the step: so much lost, and no cause found, is no "ok".
_HALF = 0.5
#: Of the step: from here on a loss is named.
_WORTH_RATIO = 0.1


def judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
    asked: Sequence[Rule] = (),
    unclaimed: Mapping[str, int] | None = None,
) -> Verdict:
    """The verdict on a run; ``gaps`` are searched for causes that the ``asked`` rules could not test.

    ``unclaimed``: what is lost and no finding claims, by ledger term.
    """
    if not time.per_rank and memory is not None and memory.per_rank:
        status, sentence = _peak(run, memory, findings)
        return _verdict(status, f"{sentence}; no step was timed")
    if not time.per_rank:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"no step of {run.name} was timed")
    spoiled = next((f for f in findings if spoils(f)), None)
    if spoiled:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{_step(time)}: {spoiled.sentence}")
    sure = [f for f in findings if f.confidence is not Confidence.LOW and f.saving_ns[1] > 0]
    apart = next((gap for gap in gaps if gap.what == NOT_COMPARED), None)
    if apart:
        return _not_compared(f"{_step(time)}{_loaded(run)}", apart, sure)
    if comparison and comparison.step_time:
        status, sentence = compared(comparison, sure, gaps, asked, loaded=_loaded(run), of=_of(time))
        return _verdict(status, f"{sentence}{_still_exposed(time) if status is VerdictStatus.OK else ''}")
    if sure:
        more = _more(sure, unclaimed or {}, time) + _unsplit(run, time)
        return _verdict(VerdictStatus.RISK, f"{_step(time)}{_loaded(run)}: {sure[0].sentence}{more}")
    return _guessed(run, time, findings) or _alone(run, time, gaps, asked)


def judge_memory(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> Verdict:
    """The verdict on the memory of a run; with ranks missing it is never ok."""
    if not memory.per_rank:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"no memory of {run.name} was recorded")
    return _verdict(*_peak(run, memory, findings))


def _not_compared(head: str, why: Gap, sure: Sequence[Finding]) -> Verdict:
    """A baseline was named, and nothing can be said of it; what the run shows by itself is."""
    alone = f"; by itself: {sure[0].sentence}" if sure else ""
    return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}, not compared: {why.reason}{alone}")


def _peak(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> tuple[VerdictStatus, str]:
    status, sentence = of_memory(memory, findings)
    if status is VerdictStatus.OK and len(run.ranks_loaded) < run.world_size:
        status = VerdictStatus.INCONCLUSIVE
    return status, f"{sentence}{_loaded(run)}"


def _more(sure: Sequence[Finding], unclaimed: Mapping[str, int], time: Time) -> str:
    """That more is lost than the findings can save, where that is worth a word."""
    rest, saved = sum(unclaimed.values()), sum(finding.saving_ns[1] for finding in sure)
    if rest <= saved or rest < _WORTH_RATIO * max(rank.wall_ns for rank in time.per_rank):
        return ""
    return f"; up to {format_ns(rest)} more is lost, and nothing found explains it"


def _guessed(run: RunFacts, time: Time, findings: Sequence[Finding]) -> Verdict | None:
    """Nothing is sure enough, but a guess is about so much of the step that the run is not called ok."""
    wall = max(rank.wall_ns for rank in time.per_rank)
    guess = next((f for f in findings if f.saving_ns[1] >= _WORTH_RATIO * wall), None)
    if guess is None:
        return None
    return _verdict(VerdictStatus.INCONCLUSIVE, f"{_step(time)}{_loaded(run)}: perhaps {guess.sentence}")


def _alone(run: RunFacts, time: Time, gaps: Sequence[Gap], asked: Sequence[Rule]) -> Verdict:
    """Where nothing is sure enough."""
    head = f"{_step(time)}{_loaded(run)}"
    missing = untested(_NEEDED, gaps)
    if missing:
        seen = _unsplit(run, time).removeprefix("; ") or _lost(time).removesuffix("; ")
        said = f"{seen}; " if seen else ""
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: {said}not tested: {_listed(missing)}")
    idle = _idle(time)
    if idle is not None:
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: {idle} of it nothing runs, {_why(gaps, asked)}")
    exposed = _exposed_ratio(time)
    if exposed > _HALF:
        what = f"{format_percent(exposed)} of it is exposed communication and copies"
        return _verdict(VerdictStatus.INCONCLUSIVE, f"{head}: {what}, and no cause of that was found")
    whole = len(run.ranks_loaded) >= run.world_size
    status = VerdictStatus.OK if whole else VerdictStatus.INCONCLUSIVE
    return _verdict(status, f"{head}: no cause of lost time found{_exposure(time)}{_still_exposed(time)}")


def _why(gaps: Sequence[Gap], asked: Sequence[Rule]) -> str:
    """What is known of the causes of idle time, none of which was found."""
    missing = untested(_IDLE, gaps, asked)
    if missing:
        return f"and what the host does meanwhile is not known: not tested: {_listed(missing)}"
    return f"and none of its known causes was found ({_listed(_IDLE)})"


def _listed(causes: Sequence[Cause]) -> str:
    return ", ".join(cause.value for cause in causes)


def _verdict(status: VerdictStatus, sentence: str) -> Verdict:
    return Verdict(status=status, sentence=f"{status.value.upper()} {sentence}")


def _step(time: Time) -> str:
    walls = [rank.wall_ns for rank in time.per_rank]
    return f"{format_ns(sum(walls) / len(walls))} {_of(time)}"


def _of(time: Time) -> str:
    whole = time.window is not None and time.window.policy is WindowPolicy.TRACE
    return "in all" if whole else "a step"


def _idle(time: Time) -> str | None:
    """How much of the time is idle, where that is more than half of it."""
    idle = sum(rank.idle_ns + rank.unexplained_ns for rank in time.per_rank)
    wall = sum(rank.wall_ns for rank in time.per_rank)
    return format_percent(idle / wall) if idle > _HALF * wall else None


def _exposed_ratio(time: Time) -> float:
    """How much of the time nothing is computed because data is on its way."""
    wall = sum(rank.wall_ns for rank in time.per_rank)
    exposed = sum(int(getattr(rank, term)) for rank in time.per_rank for term in _EXPOSED)
    return exposed / wall if wall else 0.0


def _still_exposed(time: Time) -> str:
    """The share of the step in which nothing is computed because data is on its way, where that is much."""
    exposed = _exposed_ratio(time)
    if exposed < _WORTH_RATIO:
        return ""
    most = "at most " if any(rank.upper_bound for rank in time.per_rank) else ""
    of = "the time" if _of(time) == "in all" else "the step"
    return f"; {most}{format_percent(exposed)} of {of} is exposed communication and copies"


def _lost(time: Time) -> str:
    """The largest part of the step in which nothing is computed, where it is worth a word."""
    ranks = time.per_rank
    sums = {name: sum(int(getattr(rank, term)) for rank in ranks) for term, name in _LOST.items()}
    name, largest = max(sums.items(), key=lambda item: item[1])
    if largest < _WORTH_RATIO * sum(rank.wall_ns for rank in ranks):
        return ""
    return f"{format_ns(largest / len(ranks))} of it is {name}; "


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
        f"; {format_ns(exposed / len(ranks))} of it is exposed communication, and {lacking}, "
        "waiting and moving bytes cannot be told apart"
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
