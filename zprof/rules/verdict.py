"""Give the verdict: one word and one sentence, for time and for memory.

Without a baseline: ``risk`` if a finding is above low confidence, ``ok`` if the causes that need no baseline
were tested and none was found, else ``inconclusive``. A run is also inconclusive if a tenth of the step or
more is exposed and no finding explains it. If no step was timed, the peak decides: ``risk`` if a finding of
at least medium confidence frees a tenth of it or the allocator had to retry, ``inconclusive`` if a tenth of
it has no known owner. For the verdict against a baseline see :mod:`zprof.rules.baseline_verdict`.
"""

from collections.abc import Sequence

from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_ns, format_percent, printable, shorten
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory, RankMemory
from zprof.model.report import Comparison, RunFacts, Verdict, VerdictStatus, Volume
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_NAMES, Time, WindowPolicy
from zprof.rules.baseline_verdict import judge_against_baseline
from zprof.rules.claims import ExposedGroup, Unexplained, spoils_times
from zprof.rules.rule import Rule, list_untested

#: Causes that must have been tested before a run by itself is called ok.
_NEEDED_CAUSES = (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK, Cause.MEASUREMENT_ARTIFACT)
#: Causes of an idle device. If one is untested, idle time is reported as unknown.
_IDLE_CAUSES = (Cause.CPU_BOUND_LAUNCH, Cause.BLOCKING_SYNC, Cause.DATA_LOADER, Cause.ALLOCATOR_RETRIES)

_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns")
_COMMUNICATION = _EXPOSED[:2]
_LOST_TERMS = {term: LEDGER_NAMES[term] for term in (*_EXPOSED, "idle_ns")}
#: With more than this share of the step idle and no cause found, the verdict is not "ok".
_IDLE_RATIO = 0.5
#: Minimum share of the step for a loss to be named.
_WORTH_RATIO = 0.1
#: Maximum number of groups named, and their minimum size relative to the largest one.
_MAX_GROUPS = 3
_WORTH_GROUP_RATIO = 0.1
_MAX_NAME_LENGTH = 40
#: Maximum number of ranks named.
_MAX_NAMED_RANKS = 4

_Judgement = tuple[VerdictStatus, str]

#: Gaps that keep a verdict from covering the whole run, and their wording.
_LOST_RANKS = {
    GapKind.RANK_MISSING: "recorded nothing",
    GapKind.RANK_CUT_SHORT: "ended before the recording did",
    GapKind.DISK_FULL: "ran out of disk space",
}


def judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
    asked: Sequence[Rule] = (),
    unexplained: Unexplained | None = None,
    volume: Volume | None = None,
) -> Verdict:
    """Return the verdict on a run; if ranks were killed or could not write, it names them and is never ok."""
    status, sentence = _judge(
        run,
        time,
        comparison,
        findings=findings,
        gaps=gaps,
        memory=memory,
        asked=asked,
        unexplained=unexplained,
        volume=volume,
    )
    lost = _describe_lost_ranks(gaps)
    if lost and status in (VerdictStatus.OK, VerdictStatus.INCONCLUSIVE):
        status, sentence = VerdictStatus.INCONCLUSIVE, f"{lost}; of what was recorded: {sentence}"
    return _make_verdict(status, sentence)


def _describe_lost_ranks(gaps: Sequence[Gap]) -> str:
    """Return which ranks the verdict does not cover: "rank 1 ended before the recording did"."""
    said = []
    for kind, verb in _LOST_RANKS.items():
        ranks = sorted({gap.rank for gap in gaps if gap.kind is kind and gap.rank is not None})
        if ranks:
            shown = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED_RANKS])
            more = f" and {len(ranks) - _MAX_NAMED_RANKS} more" if len(ranks) > _MAX_NAMED_RANKS else ""
            said.append(f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more} {verb}")
    return ", ".join(said)


def _judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
    asked: Sequence[Rule] = (),
    unexplained: Unexplained | None = None,
    volume: Volume | None = None,
) -> _Judgement:
    """Return the verdict on what was recorded; ``gaps`` name the causes that no rule could test.

    ``unexplained``: the loss that no finding explains.
    """
    if not time.per_rank and memory is not None and memory.per_rank:
        status, sentence = _judge_peak_of_run(run, memory, findings)
        return (status, f"{sentence}; no step was timed")
    if not time.per_rank:
        return (VerdictStatus.INCONCLUSIVE, f"no step of {run.name} was timed")
    spoiled = next((f for f in findings if spoils_times(f)), None)
    if spoiled:
        return (VerdictStatus.INCONCLUSIVE, f"{_mean_step(time)}: {spoiled.sentence}")
    sure = [f for f in findings if f.confidence is not Confidence.LOW and f.saving_ns[1] > 0]
    apart = next((gap for gap in gaps if gap.kind is GapKind.TIMES_NOT_COMPARABLE), None)
    if apart:
        return _refuse_comparison(f"{_mean_step(time)}{_loaded_ranks(run)}", apart, sure)
    if comparison and comparison.step_time:
        status, sentence = judge_against_baseline(
            comparison, sure, gaps, asked, loaded=_loaded_ranks(run), of=_step_unit(time)
        )
        more = _describe_exposed(time) + _describe_excess_volume(volume) if status is VerdictStatus.OK else ""
        return (status, f"{sentence}{more}")
    if sure:
        more = _describe_unexplained(sure, unexplained or Unexplained(), time) + _describe_unsplit(run, time)
        return (VerdictStatus.RISK, f"{_mean_step(time)}{_loaded_ranks(run)}: {sure[0].sentence}{more}")
    rest = unexplained or Unexplained()
    return _judge_guess(run, time, findings) or _judge_without_findings(run, time, gaps, asked, rest, volume)


def judge_memory(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict on the memory of a run; never ok if ranks are missing."""
    if not memory.per_rank:
        return _make_verdict(VerdictStatus.INCONCLUSIVE, f"no memory of {run.name} was recorded")
    return _make_verdict(*_judge_peak_of_run(run, memory, findings))


def _refuse_comparison(head: str, why: Gap, sure: Sequence[Finding]) -> _Judgement:
    """Return an inconclusive verdict on a baseline that cannot be compared, with the run's own finding."""
    alone = f"; by itself: {sure[0].sentence}" if sure else ""
    return (VerdictStatus.INCONCLUSIVE, f"{head}, not compared: {why.reason}{alone}")


def _judge_peak_of_run(run: RunFacts, memory: Memory, findings: Sequence[Finding]) -> _Judgement:
    status, sentence = judge_peak(memory, findings)
    if status is VerdictStatus.OK and len(run.ranks_loaded) < run.world_size:
        status = VerdictStatus.INCONCLUSIVE
    return status, f"{sentence}{_loaded_ranks(run)}"


def _describe_unexplained(sure: Sequence[Finding], unexplained: Unexplained, time: Time) -> str:
    """Return that one rank loses more than the findings can save, if that is a tenth of its step or more."""
    rest, saved = unexplained.total_ns, sum(finding.saving_ns[1] for finding in sure)
    wall = next((rank.wall_ns for rank in time.per_rank if rank.rank == unexplained.rank), 0)
    if rest <= saved or rest < _WORTH_RATIO * wall:
        return ""
    most = max(unexplained.terms, key=lambda term: unexplained.terms[term])
    mostly = f", mostly {_LOST_TERMS[most]}" if most in _LOST_TERMS else ""
    if most in _COMMUNICATION and unexplained.groups:
        mostly += f" in {_name_group(unexplained.groups[0])}"
    return f"; rank {unexplained.rank} loses {format_ns(rest)} more{mostly}, and no finding explains it"


def _judge_guess(run: RunFacts, time: Time, findings: Sequence[Finding]) -> _Judgement | None:
    """Return an inconclusive verdict if a low-confidence finding covers a tenth of the step, else None."""
    wall = max(rank.wall_ns for rank in time.per_rank)
    guess = next((f for f in findings if f.saving_ns[1] >= _WORTH_RATIO * wall), None)
    if guess is None:
        return None
    return (VerdictStatus.INCONCLUSIVE, f"{_mean_step(time)}{_loaded_ranks(run)}: perhaps {guess.sentence}")


def _judge_without_findings(
    run: RunFacts,
    time: Time,
    gaps: Sequence[Gap],
    asked: Sequence[Rule],
    unexplained: Unexplained,
    volume: Volume | None,
) -> _Judgement:
    """Return the verdict for a run without findings above low confidence."""
    head = f"{_mean_step(time)}{_loaded_ranks(run)}"
    missing = list_untested(_NEEDED_CAUSES, gaps)
    if missing:
        seen = _describe_unsplit(run, time).removeprefix("; ") or _largest_loss(time).removesuffix("; ")
        said = f"{seen}; " if seen else ""
        return (VerdictStatus.INCONCLUSIVE, f"{head}: {said}not tested: {_join_causes(missing)}")
    idle = _idle_share(time)
    if idle is not None:
        return (
            VerdictStatus.INCONCLUSIVE,
            f"{head}: {idle} of it nothing runs, {_explain_idle(gaps, asked)}",
        )
    exposed = _exposed_ratio(time)
    if exposed >= _WORTH_RATIO:
        most = "at most " if any(rank.upper_bound for rank in time.per_rank) else ""
        what = f"{most}{format_percent(exposed)} of it is exposed communication and copies"
        said = f"{head}: {what}{_list_groups(unexplained)}, and no finding explains it"
        return (VerdictStatus.INCONCLUSIVE, said)
    whole = len(run.ranks_loaded) >= run.world_size
    status = VerdictStatus.OK if whole else VerdictStatus.INCONCLUSIVE
    more = f"{_exposed_share(time)}{_describe_excess_volume(volume)}"
    return (status, f"{head}: no cause of lost time found{more}")


def _list_groups(unexplained: Unexplained) -> str:
    """Return the groups of collectives with most of the loss, as means of their ranks."""
    named = [
        f"{format_ns(entry.ns)} in {_name_group(entry)}"
        for entry in unexplained.groups[:_MAX_GROUPS]
        if entry.ns >= _WORTH_GROUP_RATIO * unexplained.groups[0].ns
    ]
    return f" ({', '.join(named)})" if named else ""


def _name_group(entry: ExposedGroup) -> str:
    return f"{entry.kind} of group {shorten(printable(entry.group), _MAX_NAME_LENGTH)}"


def _explain_idle(gaps: Sequence[Gap], asked: Sequence[Rule]) -> str:
    """Return what is known about the causes of idle time, none of which was found."""
    missing = list_untested(_IDLE_CAUSES, gaps, asked)
    if missing:
        return f"and what the host does meanwhile is unknown: not tested: {_join_causes(missing)}"
    return f"and none of its known causes was found ({_join_causes(_IDLE_CAUSES)})"


def _join_causes(causes: Sequence[Cause]) -> str:
    return ", ".join(cause.value for cause in causes)


def _make_verdict(status: VerdictStatus, sentence: str) -> Verdict:
    return Verdict(status=status, sentence=f"{status.value.upper()} {sentence}")


def _mean_step(time: Time) -> str:
    walls = [rank.wall_ns for rank in time.per_rank]
    return f"{format_ns(sum(walls) / len(walls))} {_step_unit(time)}"


def _step_unit(time: Time) -> str:
    whole = time.window is not None and time.window.policy is WindowPolicy.TRACE
    return "in all" if whole else "per step"


def _idle_share(time: Time) -> str | None:
    """Return the idle share of the time if that is more than half, else None."""
    idle = sum(rank.idle_ns + rank.unexplained_ns for rank in time.per_rank)
    wall = sum(rank.wall_ns for rank in time.per_rank)
    return format_percent(idle / wall) if idle > _IDLE_RATIO * wall else None


def _exposed_ratio(time: Time) -> float:
    """Return the share of the time in which nothing is computed because data is being moved."""
    wall = sum(rank.wall_ns for rank in time.per_rank)
    exposed = sum(int(getattr(rank, term)) for rank in time.per_rank for term in _EXPOSED)
    return exposed / wall if wall else 0.0


def _describe_exposed(time: Time) -> str:
    """Return the exposed share of the step as text if it is a tenth or more, else ""."""
    exposed = _exposed_ratio(time)
    if exposed < _WORTH_RATIO:
        return ""
    most = "at most " if any(rank.upper_bound for rank in time.per_rank) else ""
    of = "the time" if _step_unit(time) == "in all" else "the step"
    return f"; {most}{format_percent(exposed)} of {of} is exposed communication and copies"


def _describe_excess_volume(volume: Volume | None) -> str:
    """Return that more bytes move than the ZeRO formula says, even if all of them are hidden; else ""."""
    if volume is None or not volume.exceeds_formula:
        return ""
    seen, formula = format_bytes(volume.seen_bytes), format_bytes(volume.expected_bytes)
    return f"; a rank moves {seen} per step, {format_percent(volume.ratio)} of the ZeRO formula ({formula})"


def _largest_loss(time: Time) -> str:
    """Return the largest lost term of the step as text if it is a tenth or more, else ""."""
    ranks = time.per_rank
    sums = {name: sum(int(getattr(rank, term)) for rank in ranks) for term, name in _LOST_TERMS.items()}
    name, largest = max(sums.items(), key=lambda item: item[1])
    if largest < _WORTH_RATIO * sum(rank.wall_ns for rank in ranks):
        return ""
    return f"{format_ns(largest / len(ranks))} of it is {name}; "


def _describe_unsplit(run: RunFacts, time: Time) -> str:
    """Return how much exposed communication cannot be split into wait and transfer, if that is most of it."""
    ranks = time.per_rank
    unsplit = sum(rank.unsplit_ns for rank in ranks)
    exposed = sum(rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in ranks)
    if 2 * unsplit <= exposed:
        return ""
    missing = len(run.ranks_loaded) < run.world_size
    lacking = "without the other ranks" if missing else "as long as the ranks' collectives are not matched"
    return (
        f"; {format_ns(exposed / len(ranks))} of it is exposed communication, and {lacking}, "
        "waiting and moving bytes cannot be separated"
    )


def _exposed_share(time: Time) -> str:
    total = sum(rank.collective_ns for rank in time.per_rank)
    if not total:
        return ""
    exposed = total - sum(rank.overlapped_ns for rank in time.per_rank)
    most = "at most " if any(rank.upper_bound for rank in time.per_rank) else ""
    return f" ({most}{format_percent(exposed / total)} of collective time is exposed)"


def _loaded_ranks(run: RunFacts) -> str:
    loaded = len(run.ranks_loaded)
    return f" on {loaded} of {run.world_size} ranks" if loaded < run.world_size else ""


_RISK_RATIO = 0.10
_UNKNOWN_RATIO = 0.10


def judge_peak(memory: Memory, findings: Sequence[Finding]) -> _Judgement:
    """Return status and sentence for the peak of the rank that has the highest; needs memory of some rank."""
    rank = max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    head = _describe_peak(rank)
    risk = next((entry for entry in findings if _is_risk(entry, rank)), None)
    if risk:
        return VerdictStatus.RISK, f"{head}: {risk.sentence}"
    unknown = rank.untagged_bytes / max(1, rank.peak_bytes)
    if unknown >= _UNKNOWN_RATIO:
        return VerdictStatus.INCONCLUSIVE, f"{head}: {format_percent(unknown)} of it has no known owner"
    return VerdictStatus.OK, f"{head}: {_describe_no_risk(rank, findings)}"


def _describe_no_risk(rank: RankMemory, findings: Sequence[Finding]) -> str:
    perhaps = next((entry for entry in findings if _frees_much(entry, rank)), None)
    if perhaps:
        return f"nothing sure frees a tenth of it; {perhaps.id} below may"
    return "none of the causes that were tested frees a tenth of it"


def _is_risk(finding: Finding, rank: RankMemory) -> bool:
    if finding.confidence is Confidence.LOW:
        return False
    if finding.cause is Cause.ALLOCATOR_RETRIES:
        return True
    return _frees_much(finding, rank)


def _frees_much(finding: Finding, rank: RankMemory) -> bool:
    return finding.saving_bytes is not None and finding.saving_bytes[1] >= _RISK_RATIO * rank.peak_bytes


def _describe_peak(rank: RankMemory) -> str:
    most = {(True, False): "at most ", (False, True): "at least "}.get(
        (rank.upper_bound, rank.lower_bound), ""
    )
    first = max(DISPLAY_ORDER, key=lambda tenant: rank.tenants.get(tenant, 0))
    held = rank.tenants.get(first, 0)
    share = f" ({first.value.replace('_', ' ')} {format_percent(held / rank.peak_bytes)})" if held else ""
    return f"peak {most}{format_bytes(rank.peak_bytes)} on rank {rank.rank}{share}"
