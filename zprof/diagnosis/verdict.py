"""Give the verdict, one word and one sentence, for time and for memory.

Without a baseline: ``risk`` if a finding above low confidence saves 3 % of the step (a loss that is larger
than what all these explain comes first), ``ok`` if the causes that need no baseline were tested and none
costs as much, or if less than a tenth of the step can be lost at all, else ``inconclusive``. A run is also
inconclusive if a tenth of the step or more is exposed and no finding explains it, or is not in the recording.
If no step was timed, the peak decides:
``risk`` if a finding of at least medium confidence frees a tenth of it or the allocator had to retry,
``inconclusive`` if a tenth of it has no known owner.

Against a baseline: ``slower``, ``ok`` or ``inconclusive`` by the judgement of the step time
(:func:`zprof.analysis.compare.judgement.judge_step_time`). A finding is reported as the cause only if it
costs at least a tenth of the change more than in the baseline, and if the ledger terms that its saving is
taken from account for as much. What the baseline lost as well explains nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from zprof.causes.cause import Cause, Sign
from zprof.diagnosis.change import MIN_CHANGE_RATIO, is_cause_of_change
from zprof.diagnosis.claims import Unexplained
from zprof.diagnosis.ending_verdict import describe_ending, has_failed, has_run_out_of_memory
from zprof.diagnosis.loss_sentences import (
    MIN_STEP_RATIO,
    describe_unexplained,
    describe_usual_bandwidth,
    list_groups,
)
from zprof.model.endings import RankEnd
from zprof.model.findings import Confidence, Finding
from zprof.model.formatting import format_bytes, format_ns, format_percent
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import Hang, HangStatus
from zprof.model.hang_text import describe_hang
from zprof.model.memory import Memory, RankMemory
from zprof.model.quantities import BOUND_WORDS, Bound
from zprof.model.report import WORK_SETTINGS, Comparison, RunFacts, Verdict, VerdictStatus, Volume
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_NAMES, Time, bound_exposed_time, mean_over_ranks

_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns")
_LOST_TERMS = {term: LEDGER_NAMES[term] for term in (*_EXPOSED, "idle_ns")}
#: If more than this share of the step is idle and no cause was found, the verdict is not "ok". If the pace of
#: the hosts is unknown, a tenth is enough.
_MAX_IDLE_RATIO = 0.5
#: Minimum share of the step that a finding saves, for the run to be at risk.
_MIN_RISK_SAVING_RATIO = 0.03
#: And at least this: steps of which it is 3 % do nothing that a user waits for.
_MIN_RISK_SAVING_NS = 100_000
_HANG_STATUS = {
    HangStatus.STUCK: VerdictStatus.RISK,
    HangStatus.RESUMED: VerdictStatus.OK,
    HangStatus.FINISHED: VerdictStatus.OK,
    HangStatus.RUNNING: VerdictStatus.INCONCLUSIVE,
    HangStatus.UNKNOWN: VerdictStatus.INCONCLUSIVE,
}

_Judgement = tuple[VerdictStatus, str]


def judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
    causes: Mapping[str, Cause],
    unexplained: Unexplained | None = None,
    volume: Volume | None = None,
    hang: Hang | None = None,
    endings: Sequence[RankEnd] = (),
) -> Verdict:
    """Return the verdict on a run; if ranks were killed or could not write, it lists them and is never ok.

    A hang is the whole verdict: what was measured before it is not why the job does not go on.
    """
    ending = describe_ending(gaps, memory, endings)
    if hang is not None and (hang.status is HangStatus.STUCK or not time.per_rank):
        if hang.status is HangStatus.STUCK or not ending:
            return _make_verdict(_HANG_STATUS[hang.status], describe_hang(hang))
        status = VerdictStatus.RISK if has_failed(endings) else VerdictStatus.INCONCLUSIVE
        return _make_verdict(status, f"{ending}; {describe_hang(hang)}")
    status, sentence = _judge(
        run,
        time,
        comparison,
        findings=findings,
        gaps=gaps,
        memory=memory,
        causes=causes,
        unexplained=unexplained,
        volume=volume,
    )
    if time.per_rank:
        sentence = f"{sentence}{_describe_missing_parts(time, gaps)}"
    if ending:
        sentence = f"{ending}; in the recorded part: {sentence}"
        if has_run_out_of_memory(gaps, memory) or has_failed(endings):
            status = VerdictStatus.RISK
        elif status is VerdictStatus.OK:
            status = VerdictStatus.INCONCLUSIVE
    return _make_verdict(status, sentence)


def _judge(
    run: RunFacts,
    time: Time,
    comparison: Comparison | None,
    *,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
    memory: Memory | None = None,
    causes: Mapping[str, Cause],
    unexplained: Unexplained | None = None,
    volume: Volume | None = None,
) -> _Judgement:
    """Return the verdict on the recorded part; ``gaps`` list the causes that no rule could test.

    ``unexplained``: the loss that no finding explains.
    """
    if not time.per_rank and memory is not None and memory.per_rank:
        status, sentence = _judge_peak_of_run(run, memory, findings, causes, comparison)
        is_snapshot = any(memory.is_history(rank.rank) for rank in memory.per_rank)
        return (status, sentence if is_snapshot else f"{sentence}; no step was timed")
    if not time.per_rank:
        return (VerdictStatus.INCONCLUSIVE, f"no step of {run.name} was timed")
    spoiled = next((f for f in findings if f.invalidates_times), None)
    if spoiled:
        return (VerdictStatus.INCONCLUSIVE, f"{_format_mean_step(time)}: {spoiled.sentence}")
    sure = [f for f in findings if f.confidence is not Confidence.LOW and f.saving_ns[1] > 0]
    comparison_gap = next((gap for gap in gaps if gap.kind is GapKind.TIMES_NOT_COMPARABLE), None)
    if comparison_gap:
        return _refuse_comparison(
            f"{_format_mean_step(time)}{_describe_loaded_ranks(run)}", comparison_gap, sure
        )
    if comparison and comparison.step_time:
        status, sentence = judge_against_baseline(
            comparison,
            sure,
            gaps,
            causes,
            loaded_ranks=_describe_loaded_ranks(run),
            time_unit=time.basis,
        )
        details = (
            _describe_exposed(time) + _describe_excess_volume(volume, time)
            if status is VerdictStatus.OK
            else ""
        )
        return (status, f"{sentence}{details}")
    remainder = unexplained or Unexplained()
    min_saving_ns = max(
        _MIN_RISK_SAVING_NS, _MIN_RISK_SAVING_RATIO * mean_over_ranks(time.per_rank, "wall_ns")
    )
    main = next((f for f in sure if f.saving_ns[1] >= min_saving_ns), None)
    if main:
        loss = describe_unexplained(run, time, remainder, sure)
        cause = f"{loss}; the first known cause: {main.sentence}" if loss else main.sentence
        details = _describe_unsplit_communication(run, time)
        return (
            VerdictStatus.RISK,
            f"{_format_mean_step(time)}{_describe_loaded_ranks(run)}: {cause}{details}",
        )
    return _judge_guess(run, time, findings) or _judge_without_findings(
        run, time, gaps, causes, remainder, volume, sure
    )


def judge_against_baseline(
    comparison: Comparison,
    sure: Sequence[Finding],
    gaps: Sequence[Gap],
    causes: Mapping[str, Cause],
    *,
    loaded_ranks: str = "",
    time_unit: str = "per step",
) -> _Judgement:
    """Return the status and sentence of the verdict; both runs must be timed.

    ``loaded_ranks`` describes the loaded ranks if some are missing. ``time_unit``: the basis of the times.
    """
    from zprof.analysis.compare.judgement import Obstacle, find_obstacle, judge_step_time
    from zprof.model.side_by_side import Judgement

    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    judgement, change = judge_step_time(comparison)
    obstacle = find_obstacle(comparison, gaps)
    description = f"{change.ratio * 100:+.0f} %"
    if obstacle is not Obstacle.FEW_STEPS:  # one or two steps make the interval meaningless
        description += f" [{change.low * 100:+.1f}, {change.high * 100:+.1f}]"
    if work is not None and work.b_ns != times.b_ns:
        ratio = times.b_ns / max(1, work.b_ns)
        description = f"with {ratio:.3g} times the {work.unit.value} per rank: {description} at equal work"
    head = f"{format_ns(times.b_ns)} vs {format_ns(times.a_ns)} {time_unit}, {description}{loaded_ranks}"
    if obstacle is Obstacle.FEW_STEPS:
        return VerdictStatus.INCONCLUSIVE, f"{head}: too few steps to distinguish the change from noise"
    if obstacle is Obstacle.UNKNOWN_WORK:
        different_work = [entry for entry in comparison.differences if entry.key in WORK_SETTINGS]
        jobs = ", ".join(f"{entry.b} vs {entry.a} {entry.what}" for entry in different_work)
        reason = f"the jobs differ ({jobs}) and their work per step is unknown"
        return VerdictStatus.INCONCLUSIVE, f"{head}: {reason}"
    if judgement is Judgement.WORSE:
        return VerdictStatus.SLOWER, f"{head}{_explain_change(comparison, sure, causes)}"
    if judgement is Judgement.SAME:
        return VerdictStatus.OK, head
    suspect = f"; possible cause: {sure[0].sentence}" if sure else ""
    return VerdictStatus.INCONCLUSIVE, f"{head}: step times vary too much for a verdict{suspect}"


def _explain_change(comparison: Comparison, sure: Sequence[Finding], causes: Mapping[str, Cause]) -> str:
    """Name the first finding whose terms account for part of the change, or whose claims are unknown."""
    from zprof.analysis.compare.differences import compute_ledger_delta

    delta = compute_ledger_delta(comparison)
    total = sum(delta.values())
    for finding in sure:
        if finding.change_ns is not None and not is_cause_of_change(finding, total):
            continue
        terms = causes[finding.cause].terms
        if sum(max(0, delta.get(term, 0)) for term in terms) < MIN_CHANGE_RATIO * total:
            continue
        return f", because {finding.sentence}"
    term, change = max(delta.items(), key=lambda item: item[1])
    largest = (
        f"the largest part is {LEDGER_NAMES[term]} (+{format_ns(change)})"
        if change > 0
        else "no ledger term grew"
    )
    return f"; {'no finding explains it' if sure else 'no cause found'}; {largest}"


def judge_memory(
    run: RunFacts, memory: Memory, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> Verdict:
    """Return the verdict on the memory of a run; never ok if ranks are missing."""
    if not memory.per_rank:
        return _make_verdict(VerdictStatus.INCONCLUSIVE, f"no memory of {run.name} was recorded")
    return _make_verdict(*_judge_peak_of_run(run, memory, findings, causes))


def _refuse_comparison(head: str, gap: Gap, sure: Sequence[Finding]) -> _Judgement:
    """Return an inconclusive verdict if the baseline is not comparable, with the run's own first finding."""
    own_finding = f"; without the baseline: {sure[0].sentence}" if sure else ""
    return (VerdictStatus.INCONCLUSIVE, f"{head}, not compared: {gap.reason}{own_finding}")


def _judge_peak_of_run(
    run: RunFacts,
    memory: Memory,
    findings: Sequence[Finding],
    causes: Mapping[str, Cause],
    comparison: Comparison | None = None,
) -> _Judgement:
    status, sentence = judge_peak(memory, findings, causes, comparison)
    if status is VerdictStatus.OK and len(run.ranks_loaded) < run.world_size:
        status = VerdictStatus.INCONCLUSIVE
    return status, f"{sentence}{_describe_loaded_ranks(run)}"


def _describe_missing_parts(time: Time, gaps: Sequence[Gap]) -> str:
    """Describe what a step of training on several ranks has and this recording has not, else ""."""
    kinds = {gap.kind for gap in gaps}
    parts = []
    if GapKind.NO_BACKWARD in kinds:
        parts.append("no backward in it: inference or evaluation, not training")
    has_collectives = time.collectives or any(rank.collective_ns for rank in time.per_rank)
    if not has_collectives:
        parts.append("no collective in it: one rank, or communication was not recorded")
    return "".join(f"; {part}" for part in parts)


def _judge_guess(run: RunFacts, time: Time, findings: Sequence[Finding]) -> _Judgement | None:
    """Return an inconclusive verdict if a low-confidence finding costs a tenth of the step, else None."""
    wall = max(rank.wall_ns for rank in time.per_rank)
    guess = next((f for f in findings if f.saving_ns[1] >= MIN_STEP_RATIO * wall), None)
    if guess is None:
        return None
    return (
        VerdictStatus.INCONCLUSIVE,
        f"{_format_mean_step(time)}{_describe_loaded_ranks(run)}: possible cause: {guess.sentence}",
    )


def _judge_without_findings(
    run: RunFacts,
    time: Time,
    gaps: Sequence[Gap],
    causes: Mapping[str, Cause],
    unexplained: Unexplained,
    volume: Volume | None,
    minor: Sequence[Finding] = (),
) -> _Judgement:
    """Return the verdict for a run whose findings above low confidence are minor, if there are any."""
    head = f"{_format_mean_step(time)}{_describe_loaded_ranks(run)}"
    missing = list_untested([cause for cause in causes.values() if cause.is_decisive], gaps)
    is_complete = len(run.ranks_loaded) >= run.world_size
    lost_ratio = _max_lost_ratio(time)
    if missing and is_complete and lost_ratio < MIN_STEP_RATIO and not any(cause.adds for cause in missing):
        bound = (
            f"at most {format_percent(lost_ratio)} of it can be lost to communication, copies and idle time"
        )
        return (VerdictStatus.OK, f"{head}: {bound}; not tested: {_join_causes(missing)}")
    if missing:
        largest_loss = _describe_unsplit_communication(run, time).removeprefix(
            "; "
        ) or _describe_largest_loss(time).removesuffix("; ")
        description = f"{largest_loss}; " if largest_loss else ""
        return (VerdictStatus.INCONCLUSIVE, f"{head}: {description}not tested: {_join_causes(missing)}")
    idle = _idle_share(time, gaps, causes)
    if idle is not None:
        return (
            VerdictStatus.INCONCLUSIVE,
            f"{head}: nothing runs for {idle} of the time, {_explain_idle(gaps, causes)}",
        )
    wall_ns = sum(rank.wall_ns for rank in time.per_rank)
    uncovered = sum(rank.unexplained_ns for rank in time.per_rank) / max(1, wall_ns)
    if uncovered > MIN_STEP_RATIO:
        share = format_percent(uncovered)
        return (VerdictStatus.INCONCLUSIVE, f"{head}: the recording does not cover {share} of the time")
    exposed = _exposed_ratio(time)
    if exposed >= MIN_STEP_RATIO:
        bound = BOUND_WORDS[bound_exposed_time(time.per_rank)]
        share = f"{bound}{format_percent(exposed)} of the time is exposed communication and copies"
        sentence = f"{head}: {share}{list_groups(unexplained)}, and no finding explains it"
        usual = describe_usual_bandwidth(run, unexplained)
        return (VerdictStatus.INCONCLUSIVE, f"{sentence}{f' ({usual})' if usual else ''}")
    status = VerdictStatus.OK if is_complete else VerdictStatus.INCONCLUSIVE
    details = f"{_describe_exposed_share(time)}{_describe_excess_volume(volume, time)}"
    if minor:
        limit = format_percent(_MIN_RISK_SAVING_RATIO)
        return (status, f"{head}: no finding saves {limit} of it; the first: {minor[0].sentence}{details}")
    return (status, f"{head}: no cause of lost time found{details}")


def _explain_idle(gaps: Sequence[Gap], causes: Mapping[str, Cause]) -> str:
    """Describe which causes of idle time were not tested, or that none of them was found."""
    idling = [cause for cause in causes.values() if cause.idles_device]
    missing = list_untested(idling, gaps)
    if missing:
        return f"and the host's activity meanwhile is unknown: not tested: {_join_causes(missing)}"
    return f"and none of the known causes was found ({_join_causes(idling)})"


def list_untested(causes: Iterable[Cause], gaps: Sequence[Gap]) -> list[Cause]:
    """List the causes that a gap reports as untested."""
    untested = {name for gap in gaps for name in gap.causes}
    return [cause for cause in causes if cause.name in untested]


def _join_causes(causes: Sequence[Cause]) -> str:
    return ", ".join(cause.name for cause in causes)


def _make_verdict(status: VerdictStatus, sentence: str) -> Verdict:
    return Verdict(status=status, sentence=f"{status.value.upper()} {sentence}")


def _format_mean_step(time: Time) -> str:
    return f"{format_ns(mean_over_ranks(time.per_rank, 'wall_ns'))} {time.basis}"


def _idle_share(time: Time, gaps: Sequence[Gap], causes: Mapping[str, Cause]) -> str | None:
    """Return the idle share of the time if it is too large for a verdict of "ok", else None.

    That is more than half, or a tenth if the pace of the hosts is unknown.
    """
    idle = sum(rank.idle_ns + rank.unexplained_ns for rank in time.per_rank)
    wall = sum(rank.wall_ns for rank in time.per_rank)
    is_pace_unknown = any(cause.sign is Sign.LATE_LAUNCHES for cause in list_untested(causes.values(), gaps))
    max_ratio = MIN_STEP_RATIO if is_pace_unknown else _MAX_IDLE_RATIO
    return format_percent(idle / wall) if idle > max_ratio * wall else None


def _max_lost_ratio(time: Time) -> float:
    """Return the largest share of a rank's step in which it does not compute, whatever the reason."""
    terms = (*_EXPOSED, "idle_ns", "unexplained_ns")
    return max(
        (sum(int(getattr(rank, term)) for term in terms) / max(1, rank.wall_ns) for rank in time.per_rank),
        default=0.0,
    )


def _exposed_ratio(time: Time) -> float:
    """Return the share of the time in which no compute runs because data is being moved."""
    wall = sum(rank.wall_ns for rank in time.per_rank)
    exposed = sum(int(getattr(rank, term)) for rank in time.per_rank for term in _EXPOSED)
    return exposed / wall if wall else 0.0


def _describe_exposed(time: Time) -> str:
    """Return the exposed share of the step as text if it is a tenth or more, else ""."""
    exposed = _exposed_ratio(time)
    if exposed < MIN_STEP_RATIO:
        return ""
    bound = BOUND_WORDS[bound_exposed_time(time.per_rank)]
    total = "the window" if time.is_whole else "the step"
    return f"; {bound}{format_percent(exposed)} of {total} is exposed communication and copies"


def _describe_excess_volume(volume: Volume | None, time: Time) -> str:
    """Report that more bytes move than the ZeRO formula predicts, even if all are hidden; else return ""."""
    if volume is None or not volume.exceeds_scheme:
        return ""
    moved, formula = format_bytes(volume.seen_bytes), format_bytes(volume.expected_bytes)
    return (
        f"; a rank moves {moved} {time.basis}, {format_percent(volume.ratio)} of the ZeRO formula ({formula})"
    )


def _describe_largest_loss(time: Time) -> str:
    """Return the largest lost term of the step as text if it is a tenth or more, else ""."""
    ranks = time.per_rank
    sums = {name: sum(int(getattr(rank, term)) for rank in ranks) for term, name in _LOST_TERMS.items()}
    name, largest = max(sums.items(), key=lambda item: item[1])
    if largest < MIN_STEP_RATIO * sum(rank.wall_ns for rank in ranks):
        return ""
    return f"{format_ns(largest / len(ranks))} is {name}; "


def _describe_unsplit_communication(run: RunFacts, time: Time) -> str:
    """Describe the exposed communication if most of it cannot be split into wait and transfer."""
    ranks = time.per_rank
    unsplit = sum(rank.unsplit_ns for rank in ranks)
    exposed = sum(rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in ranks)
    if 2 * unsplit <= exposed:
        return ""
    missing = len(run.ranks_loaded) < run.world_size
    reason = "because ranks are missing" if missing else "because the ranks' collectives are not matched"
    return (
        f"; {format_ns(exposed / len(ranks))} is exposed communication; {reason}, "
        "wait and transfer cannot be separated"
    )


def _describe_exposed_share(time: Time) -> str:
    total = sum(rank.collective_ns for rank in time.per_rank)
    if not total:
        return ""
    exposed = total - sum(rank.overlapped_ns for rank in time.per_rank)
    bound = BOUND_WORDS[bound_exposed_time(time.per_rank)]
    return f" ({bound}{format_percent(exposed / total)} of collective time is exposed)"


def _describe_loaded_ranks(run: RunFacts) -> str:
    loaded = len(run.ranks_loaded)
    return f" on {loaded} of {run.world_size} ranks" if loaded < run.world_size else ""


_MIN_RISK_RATIO = 0.10
_MAX_UNTAGGED_RATIO = 0.10


def judge_peak(
    memory: Memory,
    findings: Sequence[Finding],
    causes: Mapping[str, Cause],
    comparison: Comparison | None = None,
) -> _Judgement:
    """Return status and sentence for the highest peak of any rank; at least one rank must have memory.

    The sentence on a snapshot says what holds the memory and what to change, whatever the status.
    """
    rank = max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    risk = next((entry for entry in findings if _is_risk(entry, rank, causes)), None)
    untagged_ratio = rank.untagged_bytes / max(1, rank.peak_bytes)
    if memory.is_history(rank.rank):
        unknown = VerdictStatus.INCONCLUSIVE if untagged_ratio >= _MAX_UNTAGGED_RATIO else VerdictStatus.OK
        ordered = [risk, *findings] if risk else findings
        from zprof.diagnosis.history_verdict import describe_history

        sentence = describe_history(rank, ordered, causes, comparison, memory.out_of_memory)
        return VerdictStatus.RISK if risk else unknown, sentence
    bound = BOUND_WORDS[rank.bounds.get("peak_bytes", Bound.EXACT)]
    largest_tenant = max(DISPLAY_ORDER, key=lambda tenant: rank.tenants.get(tenant, 0))
    size = rank.tenants.get(largest_tenant, 0)
    share = (
        f" ({largest_tenant.value.replace('_', ' ')} {format_percent(size / rank.peak_bytes)})"
        if size
        else ""
    )
    head = f"peak {bound}{format_bytes(rank.peak_bytes)} on rank {rank.rank}{share}"
    if risk:
        return VerdictStatus.RISK, f"{head}: {risk.sentence}"
    if untagged_ratio >= _MAX_UNTAGGED_RATIO:
        return (
            VerdictStatus.INCONCLUSIVE,
            f"{head}: {format_percent(untagged_ratio)} of it could not be attributed",
        )
    return VerdictStatus.OK, f"{head}: {_describe_no_risk(rank, findings)}"


def _describe_no_risk(rank: RankMemory, findings: Sequence[Finding]) -> str:
    possible = next((entry for entry in findings if _frees_significant_memory(entry, rank)), None)
    if possible:
        return f"no finding above low confidence frees a tenth of it; {possible.id} below may"
    return "fixing any of the tested causes would free less than a tenth of it"


def _is_risk(finding: Finding, rank: RankMemory, causes: Mapping[str, Cause]) -> bool:
    if finding.confidence is Confidence.LOW:
        return False
    if causes[finding.cause].is_failure:
        return True
    return _frees_significant_memory(finding, rank)


def _frees_significant_memory(finding: Finding, rank: RankMemory) -> bool:
    return finding.saving_bytes is not None and finding.saving_bytes[1] >= _MIN_RISK_RATIO * rank.peak_bytes
