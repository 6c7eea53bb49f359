"""Give the verdict: one word and one sentence, from what the findings claim.

- A hang decides the verdict alone: earlier measurements do not explain why the job is stuck.
- A run that ended early, or lost ranks, is never ok; the sentence starts with how it ended.
- Without a baseline: ``risk`` if a finding above low confidence saves 3 % of the step (a loss that is larger
  than what all these explain comes first), ``ok`` if the decisive causes were tested and none costs as much,
  or if less than a tenth of the step can be lost at all, else ``inconclusive``. A run is also inconclusive if
  a tenth of it is exposed without a finding that explains it, or is not in the recording.
- Against a baseline: ``slower``, ``ok`` or ``inconclusive`` by the judgement of the step time
  (:func:`zprof.analysis.compare.judgement.judge_step_time`). A finding is the cause only if it costs at least
  a tenth of the change more than in the baseline, and if the terms that its saving is taken from grew by as
  much. What the baseline lost as well explains nothing.
- If no step was timed, the peak of the largest rank decides: ``risk`` if a finding above low confidence frees
  a tenth of it or an allocation failed, ``inconclusive`` if a tenth of it has no known owner.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Struct, field

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate, printable, shorten
from zprof.causes.cause import Cause, Sign
from zprof.diagnosis.claims import ExposedGroup, Unexplained
from zprof.model.communicators import Communicators, CommunicatorSign, LateRanks, describe_sign
from zprof.model.endings import (
    OutOfMemory,
    RankEnd,
    describe_endings,
    describe_out_of_memory,
    list_lost_ranks,
)
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import Hang, HangStatus
from zprof.model.machines import find_machine
from zprof.model.memory import Basis, GroupChange, Memory, RankMemory
from zprof.model.quantities import BOUND_WORDS, Bound
from zprof.model.report import WORK_SETTINGS, Comparison, RunFacts, Verdict, VerdictStatus, Volume
from zprof.model.slowdown import Slowdown, SlowdownCause
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.model.time import LEDGER_NAMES, Time, bound_exposed_time, mean_over_ranks

#: Minimum share of the step or peak for a loss, guess or saving to matter.
_MIN_RATIO = 0.1
#: A run is at risk if a finding saves at least this share of the step and this time: users do not wait for
#: shorter steps.
_MIN_RISK_RATIO, _MIN_RISK_NS = 0.03, 100_000
#: If more than this share of the step is idle and no cause was found, the run is not ok. If the pace of the
#: hosts is unknown, a tenth is enough.
_MAX_IDLE_RATIO = 0.5
_COMMUNICATION = ("exposed_wait_ns", "exposed_transfer_ns")
_EXPOSED = (*_COMMUNICATION, "exposed_memcpy_ns")
#: What would reveal the cause of a loss, by ledger term.
_DECIDES: Mapping[str, str] = {
    "exposed_wait_ns": "which rank comes last, and what it did, is in zprof tui",
    "exposed_transfer_ns": "what the link can give decides: measure it, and pass --expected-busbw",
    "exposed_memcpy_ns": "which copies these are is in zprof report",
    "idle_ns": "stacks of the host decide: record with zprof record, or profile with_stack=True",
    "unexplained_ns": "a recording of these times decides",
}
_OF_HANGS = {
    HangStatus.RESUMED: VerdictStatus.OK,
    HangStatus.FINISHED: VerdictStatus.OK,
    HangStatus.RUNNING: VerdictStatus.INCONCLUSIVE,
    HangStatus.UNKNOWN: VerdictStatus.INCONCLUSIVE,
}
#: Signals with which a user, a scheduler or a closed terminal ends a job.
_INTERRUPTS, _INTERRUPT_ERROR = frozenset({"SIGINT", "SIGTERM", "SIGHUP"}), "KeyboardInterrupt"
#: Maximum collective groups and tenants in a sentence, and the minimum share of the first.
_MAX_GROUPS, _MAX_TENANTS, _MIN_GROUP_RATIO, _MIN_TENANT_RATIO = 3, 2, 0.1, 0.01
#: Maximum columns of a group name, a frame, and a fix.
_MAX_NAME, _MAX_PLACE, _MAX_FIX = 40, 60, 90

_Judgement = tuple[VerdictStatus, str]
_RISK, _OK, _INCONCLUSIVE = VerdictStatus.RISK, VerdictStatus.OK, VerdictStatus.INCONCLUSIVE


class Case(Struct, frozen=True, kw_only=True):
    """The inputs to a verdict: the parts of a report, the records of its causes, the unexplained loss."""

    run: RunFacts
    time: Time
    memory: Memory
    causes: Mapping[str, Cause]
    findings: Sequence[Finding] = ()
    gaps: Sequence[Gap] = ()
    comparison: Comparison | None = None
    unexplained: Unexplained = field(default_factory=Unexplained)
    volume: Volume | None = None
    hang: Hang | None = None
    endings: Sequence[RankEnd] = ()

    @property
    def sure(self) -> list[Finding]:
        """Findings above low confidence that save time."""
        return [
            each for each in self.findings if each.confidence is not Confidence.LOW and each.saving_ns[1] > 0
        ]

    @property
    def of_ranks(self) -> str:
        """Return how many ranks were loaded if some are missing, else ""."""
        loaded = len(self.run.ranks_loaded)
        return f" on {loaded} of {self.run.world_size} ranks" if loaded < self.run.world_size else ""

    @property
    def head(self) -> str:
        """The mean step."""
        mean_ns = mean_over_ranks(self.time.per_rank, "wall_ns")
        return f"{format_ns(mean_ns)} {self.time.basis}{self.of_ranks}"

    def sum_of_ranks(self, *terms: str) -> int:
        """Return the sum of ledger terms over all ranks, in ns per step."""
        return sum(int(getattr(rank, term)) for rank in self.time.per_rank for term in terms)

    def list_untested(self, causes: Iterable[Cause]) -> list[Cause]:
        """List the given causes that a gap reports as untested."""
        untested = {name for gap in self.gaps for name in gap.causes}
        return [cause for cause in causes if cause.name in untested]


def judge(case: Case) -> Verdict:
    """Return the verdict; it is never ok for a run that failed or lost ranks."""
    ending, hang = _describe_ending(case), case.hang
    if hang is not None and (hang.status is HangStatus.STUCK or not case.time.per_rank):
        if hang.status is HangStatus.STUCK:
            told = next((each.sentence for each in case.findings if each.is_hang), "stuck: why is not known")
            return _make_verdict(_RISK, told)
        from zprof.causes.stuck import describe_not_stuck  # rarely needed

        if not ending:
            return _make_verdict(_OF_HANGS[hang.status], describe_not_stuck(hang))
        status = _RISK if _has_failed(case.endings) else _INCONCLUSIVE
        return _make_verdict(status, f"{ending}; {describe_not_stuck(hang)}")
    if case.time.slowdown is not None and not case.time.per_rank:
        return _make_verdict(*_judge_slowdown(case.time.slowdown))
    if case.time.communicators is not UNSET:
        return _make_verdict(*_judge_communicators(case.time.communicators))
    status, sentence = _judge_steps(case) if case.time.per_rank else _judge_memory(case)
    if ending:
        sentence = f"{ending}; in the recorded part: {sentence}"
        if has_run_out_of_memory(case.gaps, case.memory) or _has_failed(case.endings):
            status = _RISK
        elif status is _OK:
            status = _INCONCLUSIVE
    return _make_verdict(status, sentence)


def _judge_slowdown(slowdown: Slowdown) -> _Judgement:
    """Return the verdict on an operation timeline: its slowdown, and what explains it."""
    lost_ns = slowdown.replayed_step_ns - slowdown.ideal_step_ns
    head = (
        f"slowdown S = {slowdown.s:.3f}: {format_ns(slowdown.replayed_step_ns)} per step, "
        f"{format_ns(slowdown.ideal_step_ns)} if all operations of a type took the same time"
    )
    if slowdown.cause is SlowdownCause.NONE:
        return _OK, head
    if slowdown.cause is SlowdownCause.LAST_STAGE:
        last = max(slowdown.by_stage)
        gain = format_percent(slowdown.m_s or 0.0)
        what = f"stage imbalance: an ideal last stage ({last}) gains {gain} of the {format_ns(lost_ns)} lost"
    elif slowdown.cause is SlowdownCause.SLOW_WORKERS:
        slow = [each for each in slowdown.workers if each.rank in slowdown.slowest_ranks]
        names = "; ".join(
            f"rank {each.rank}, dp_rank {each.dp_rank}, stage {each.stage}" for each in slow[:_MAX_GROUPS]
        )
        more = f" and {len(slow) - _MAX_GROUPS} more" if len(slow) > _MAX_GROUPS else ""
        workers = "one slow worker" if len(slow) == 1 else f"{len(slow)} slow workers"
        gain = format_percent(slowdown.m_w or 0.0)
        what = f"{workers} ({names}{more}): ideal, they gain {gain} of the {format_ns(lost_ns)} lost"
        what = what.replace("they gain", "it gains") if len(slow) == 1 else what
    else:
        name, value = next(iter(slowdown.by_operation.items()))
        share = format_percent(slowdown.share(value) or 0.0)
        what = f"neither a few workers nor the last stage; {name} alone explains {share} of the lost time"
    return _RISK, f"{head}; {what}"


def _judge_communicators(found: Communicators) -> _Judgement:
    """Return the verdict on collectives alone: the costliest of late ranks, slow communicators and periods.

    It is only ok if late ranks could be found in all communicators with several ranks.
    """
    late = [entry for entry in found.late if not entry.is_minor]
    roots = [entry for entry in late if not entry.waits_for]
    signs: list[CommunicatorSign] = [*roots, *found.slow, *found.periods] or [*late]
    if signs:
        first, *others = sorted(signs, key=lambda each: -each.cost_ns)
        more = len([each for each in others if not _is_same_process(first, each)])
        return _RISK, f"{describe_sign(first)}{f'; and {more} more' if more else ''}"
    several = len({each.communicator for each in found.classes if each.ranks > 1})
    late_ranks = f"in {found.tested} of {several} communicators no rank arrives last again and again"
    if not found.tested:
        without = f", since {len(found.missing)} of them lack files of ranks" if found.missing else ""
        late_ranks = f"in none of {several} communicators can be told who arrives last{without}"
    peers = f"of {len(found.classes)} message classes {found.compared} have peers, and none is slow"
    if not found.compared:
        peers = f"none of {len(found.classes)} message classes has peers to compare it with"
    text = f"{late_ranks}; {peers}; whether the steps are slow is not known"
    return (_OK if 0 < found.tested == several and not found.missing else _INCONCLUSIVE), text


def _is_same_process(one: CommunicatorSign, other: CommunicatorSign) -> bool:
    """Return True if the other sign is that the same processes are late in another communicator."""
    if not (isinstance(one, LateRanks) and isinstance(other, LateRanks)):
        return False
    processes = [{(place.host, place.process) for place in each.places} for each in (one, other)]
    return processes[1] <= processes[0]


def judge_memory(case: Case) -> Verdict:
    """Return the verdict on the memory of a run alone; it is never ok if ranks are missing."""
    if not case.memory.per_rank:
        return _make_verdict(_INCONCLUSIVE, f"no memory of {case.run.name} was recorded")
    return _make_verdict(*_judge_peak(case))


def _make_verdict(status: VerdictStatus, sentence: str) -> Verdict:
    return Verdict(status=status, sentence=f"{status.value.upper()} {sentence}")


def _judge_steps(case: Case) -> _Judgement:
    """Return the verdict on the timed steps, with or without a baseline."""
    status, sentence = _judge_times(case)
    kinds, missing = {gap.kind for gap in case.gaps}, ""
    if GapKind.NO_BACKWARD in kinds:
        missing += "; no backward in it: inference or evaluation, not training"
    if not case.time.collectives and not case.sum_of_ranks("collective_ns"):
        missing += "; no collective in it: one rank, or communication was not recorded"
    return status, f"{sentence}{missing}"


def _judge_times(case: Case) -> _Judgement:
    mean_step = case.head.removesuffix(case.of_ranks)
    spoiled = next((each for each in case.findings if each.invalidates_times), None)
    if spoiled:
        return _INCONCLUSIVE, f"{mean_step}: {spoiled.sentence}"
    refused = next((gap for gap in case.gaps if gap.kind is GapKind.TIMES_NOT_COMPARABLE), None)
    if refused:
        own = f"; without the baseline: {case.sure[0].sentence}" if case.sure else ""
        return _INCONCLUSIVE, f"{case.head}, not compared: {refused.reason}{own}"
    if case.comparison is not None and case.comparison.step_time is not None:
        status, sentence = judge_change(case, case.comparison)
        if status is _OK:
            sentence += _describe_exposed(case) + _describe_excess_volume(case)
        return status, sentence
    min_saving_ns = max(_MIN_RISK_NS, _MIN_RISK_RATIO * mean_over_ranks(case.time.per_rank, "wall_ns"))
    main = next((each for each in case.sure if each.saving_ns[1] >= min_saving_ns), None)
    if main:
        loss = _describe_unexplained(case)
        cause = f"{loss}; the first known cause: {main.sentence}" if loss else main.sentence
        return _RISK, f"{case.head}: {cause}{_describe_unsplit_communication(case)}"
    wall_ns = max(rank.wall_ns for rank in case.time.per_rank)
    guess = next((each for each in case.findings if each.saving_ns[1] >= _MIN_RATIO * wall_ns), None)
    if guess:
        return _INCONCLUSIVE, f"{case.head}: possible cause: {guess.sentence}"
    return _judge_without_cause(case)


def _judge_without_cause(case: Case) -> _Judgement:
    """Return the verdict on a run without findings above low confidence, or only minor ones."""
    is_complete = not case.of_ranks
    missing = case.list_untested(cause for cause in case.causes.values() if cause.is_decisive)
    if missing:
        lost_ratio, untested = _max_lost_ratio(case.time), f"not tested: {_join_names(missing)}"
        if is_complete and lost_ratio < _MIN_RATIO and not any(cause.adds for cause in missing):
            most = format_percent(lost_ratio)
            bound = f"at most {most} of it can be lost to communication, copies and idle time"
            return _OK, f"{case.head}: {bound}{_describe_schedule(case)}; {untested}"
        loss = _describe_unsplit_communication(case).removeprefix("; ") or _describe_largest_loss(case)
        return _INCONCLUSIVE, f"{case.head}: {loss}{'; ' if loss else ''}{untested}"
    not_covered = _describe_idle(case) or _describe_uncovered(case) or _describe_exposed_without_cause(case)
    if not_covered:
        return _INCONCLUSIVE, f"{case.head}: {not_covered}"
    details = f"{_describe_exposed_share(case)}{_describe_schedule(case)}{_describe_excess_volume(case)}"
    status = _OK if is_complete else _INCONCLUSIVE
    if case.sure:
        least = format_percent(_MIN_RISK_RATIO)
        return (
            status,
            f"{case.head}: no finding saves {least} of it; the first: {case.sure[0].sentence}{details}",
        )
    return status, f"{case.head}: no cause of lost time found{details}"


def judge_change(case: Case, comparison: Comparison) -> _Judgement:
    """Return status and sentence against a baseline; both runs must be timed."""
    from zprof.analysis.compare.judgement import Obstacle, find_obstacle, judge_step_time
    from zprof.model.comparison import Judgement

    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    judgement, change = judge_step_time(comparison)
    obstacle = find_obstacle(comparison, case.gaps)
    description = f"{change.ratio * 100:+.0f} %"
    if obstacle is not Obstacle.FEW_STEPS:  # one or two steps make the interval meaningless
        description += f" [{change.low * 100:+.1f}, {change.high * 100:+.1f}]"
    if work is not None and work.b_ns != times.b_ns:
        ratio = times.b_ns / max(1, work.b_ns)
        description = f"with {ratio:.3g} times the {work.unit.value} per rank: {description} at equal work"
    steps = f"{format_ns(times.b_ns)} vs {format_ns(times.a_ns)} {case.time.basis}"
    head = f"{steps}, {description}{case.of_ranks}"
    if obstacle is Obstacle.FEW_STEPS:
        return _INCONCLUSIVE, f"{head}: too few steps to distinguish the change from noise"
    if obstacle is Obstacle.UNKNOWN_WORK:
        different_work = [entry for entry in comparison.differences if entry.key in WORK_SETTINGS]
        jobs = ", ".join(f"{entry.b} vs {entry.a} {entry.what}" for entry in different_work)
        return _INCONCLUSIVE, f"{head}: the jobs differ ({jobs}) and their work per step is unknown"
    if judgement is Judgement.WORSE:
        return VerdictStatus.SLOWER, f"{head}{_explain_change(case, comparison)}"
    if judgement is Judgement.SAME:
        return _OK, head
    suspect = f"; possible cause: {case.sure[0].sentence}" if case.sure else ""
    return _INCONCLUSIVE, f"{head}: step times vary too much for a verdict{suspect}"


def _explain_change(case: Case, comparison: Comparison) -> str:
    """Describe the first finding whose terms account for part of the change, or whose claims are unknown."""
    from zprof.analysis.compare.differences import compute_ledger_delta
    from zprof.diagnosis.change import MIN_CHANGE_RATIO, is_cause_of_change

    delta = compute_ledger_delta(comparison)
    total = sum(delta.values())
    for finding in case.sure:
        if finding.change_ns is not None and not is_cause_of_change(finding, total):
            continue
        grown_ns = sum(max(0, delta.get(term, 0)) for term in case.causes[finding.cause].terms)
        if grown_ns >= MIN_CHANGE_RATIO * total:
            return f", because {finding.sentence}"
    term, change = max(delta.items(), key=lambda item: item[1])
    grown = f"the largest part is {LEDGER_NAMES[term]} (+{format_ns(change)})"
    largest = grown if change > 0 else "no ledger term grew"
    return f"; {'no finding explains it' if case.sure else 'no cause found'}; {largest}"


def _join_names(causes: Iterable[Cause]) -> str:
    return ", ".join(cause.name for cause in causes)


def _max_lost_ratio(time: Time) -> float:
    """Return the largest share of a rank's step without compute, beyond the bubble of its pipeline's
    schedule."""
    lost = (*_EXPOSED, "idle_ns", "unexplained_ns")
    shares = (sum(int(getattr(rank, each)) for each in lost) / max(1, rank.wall_ns) for rank in time.per_rank)
    return max(0.0, max(shares, default=0.0) - time.schedule_ratio)


def _describe_idle(case: Case) -> str:
    """Describe the idle share if it is too large for "ok", and what is known about it."""
    idle_ns, wall_ns = case.sum_of_ranks("idle_ns", "unexplained_ns"), case.sum_of_ranks("wall_ns")
    untested = case.list_untested(case.causes.values())
    is_pace_unknown = any(cause.sign is Sign.LATE_LAUNCHES for cause in untested)
    if idle_ns <= (_MIN_RATIO if is_pace_unknown else _MAX_IDLE_RATIO) * wall_ns:
        return ""
    idling = [cause for cause in case.causes.values() if cause.idles_device]
    missing = case.list_untested(idling)
    known = (
        f"the host's activity meanwhile is unknown: not tested: {_join_names(missing)}"
        if missing
        else f"none of the known causes was found ({_join_names(idling)})"
    )
    return f"nothing runs for {format_percent(idle_ns / wall_ns)} of the time, and {known}"


def _describe_uncovered(case: Case) -> str:
    """Describe the share of the time that is not in the recording if it exceeds a tenth."""
    uncovered = case.sum_of_ranks("unexplained_ns") / max(1, case.sum_of_ranks("wall_ns"))
    covers_too_little = uncovered > _MIN_RATIO
    return (
        f"the recording does not cover {format_percent(uncovered)} of the time" if covers_too_little else ""
    )


def _exposed_percent(case: Case) -> str:
    """Return the share of the time in which only data is moved, if it is a tenth or more.

    A pipeline's filling and draining is left out: it belongs to the schedule.
    """
    wall_ns = case.sum_of_ranks("wall_ns")
    exposed = case.sum_of_ranks(*_EXPOSED) / wall_ns - case.time.schedule_ratio if wall_ns else 0.0
    bound = BOUND_WORDS[bound_exposed_time(case.time.per_rank)]
    return f"{bound}{format_percent(exposed)}" if exposed >= _MIN_RATIO else ""


def _describe_exposed(case: Case) -> str:
    share, total = _exposed_percent(case), "the window" if case.time.is_whole else "the step"
    return f"; {share} of {total} is exposed communication and copies" if share else ""


def _describe_exposed_without_cause(case: Case) -> str:
    """Describe how much is exposed, and in which groups, if no finding explains it.

    Groups of other ranks run at the same time, so their figures do not add up to the loss of a rank.
    """
    share, groups = _exposed_percent(case), case.unexplained.groups
    if not share:
        return ""
    named = [
        f"{format_ns(entry.ns)} in {_name_group(entry)}"
        for entry in groups[:_MAX_GROUPS]
        if entry.ns >= _MIN_GROUP_RATIO * groups[0].ns
    ]
    several = "per rank of each group, not additive: " if len(named) > 1 else ""
    where = f" ({several}{', '.join(named)})" if named else ""
    usual = _describe_usual_bandwidth(case)
    text = f"{share} of the time is exposed communication and copies{where}, and no finding explains it"
    return f"{text} ({usual})" if usual else text


def _describe_schedule(case: Case) -> str:
    """State how much of a step a pipeline of equal stages fills and drains."""
    bubble = None if case.time.mesh is None else case.time.mesh.bubble
    if bubble is None:
        return ""
    return (
        f"; {bubble.stages} stages with {bubble.micro_batches} micro-batches wait "
        f"{format_percent(case.time.schedule_ratio)} of the step for each other by their schedule"
    )


def _describe_exposed_share(case: Case) -> str:
    total_ns = case.sum_of_ranks("collective_ns")
    if not total_ns:
        return ""
    exposed = 1 - case.sum_of_ranks("overlapped_ns") / total_ns
    bound = BOUND_WORDS[bound_exposed_time(case.time.per_rank)]
    return f" ({bound}{format_percent(exposed)} of collective time is exposed)"


def _describe_excess_volume(case: Case) -> str:
    """State that more bytes move than the ZeRO formula predicts, even if all are hidden."""
    volume = case.volume
    if volume is None or not volume.exceeds_scheme:
        return ""
    moved, formula = format_bytes(volume.seen_bytes), format_bytes(volume.expected_bytes)
    share = format_percent(volume.ratio)
    return f"; a rank moves {moved} {case.time.basis}, {share} of the ZeRO formula ({formula})"


def _describe_largest_loss(case: Case) -> str:
    """Return the largest lost term of the step if it is a tenth or more."""
    sums = {term: case.sum_of_ranks(term) for term in (*_EXPOSED, "idle_ns")}
    sums["exposed_wait_ns"] -= round(case.time.schedule_ratio * case.sum_of_ranks("wall_ns"))
    term, largest_ns = max(sums.items(), key=lambda item: item[1])
    if largest_ns < _MIN_RATIO * case.sum_of_ranks("wall_ns"):
        return ""
    return f"{format_ns(largest_ns / len(case.time.per_rank))} is {LEDGER_NAMES[term]}"


def _describe_unsplit_communication(case: Case) -> str:
    """Describe the exposed communication if most of it cannot be split into wait and transfer."""
    exposed_ns = case.sum_of_ranks(*_COMMUNICATION)
    if 2 * case.sum_of_ranks("unsplit_ns") <= exposed_ns:
        return ""
    reason = "ranks are missing" if case.of_ranks else "the ranks' collectives are not matched"
    return (
        f"; {format_ns(exposed_ns / len(case.time.per_rank))} is exposed communication; because {reason}, "
        "wait and transfer cannot be separated"
    )


def _describe_unexplained(case: Case) -> str:
    """Describe a rank's loss if it exceeds all savings and a tenth of its step.

    A small certain cause is not why a step is slow. A loss of only the first step is start-up.
    """
    unexplained = case.unexplained
    terms = unexplained.recurring
    loss_ns, saved_ns = sum(terms.values()), sum(finding.saving_ns[1] for finding in case.sure)
    wall_ns = next((rank.wall_ns for rank in case.time.per_rank if rank.rank == unexplained.rank), 0)
    if loss_ns <= saved_ns or loss_ns < _MIN_RATIO * wall_ns:
        return ""
    largest = max(terms, key=lambda term: terms[term])
    where, decides = "", _DECIDES[largest]
    if largest in _COMMUNICATION and unexplained.groups:
        where = f" in {_name_group(unexplained.groups[0])}"
    usual = _describe_usual_bandwidth(case) if largest == "exposed_transfer_ns" else ""
    if usual:
        decides = f"{usual}; {decides}"
    return (
        f"rank {unexplained.rank} loses {format_ns(loss_ns)} that no finding explains, mostly "
        f"{LEDGER_NAMES.get(largest, largest)}{where} ({decides})"
    )


def _describe_usual_bandwidth(case: Case) -> str:
    """Return the usual bandwidth of machines with this device, if the bandwidth of a loss is known."""
    machine = find_machine(case.run.device)
    if machine is None or not any(entry.bus_bytes_per_s for entry in case.unexplained.groups[:1]):
        return ""
    within = format_rate(machine.intra_bytes_per_s)
    between = format_rate(machine.node_bytes_per_s / machine.devices_per_node)
    return f"machines with {machine.name} usually have {within} within a node and {between} between nodes"


def _name_group(entry: ExposedGroup) -> str:
    name = f"{entry.kind} of group {shorten(printable(entry.group), _MAX_NAME)}"
    return name if entry.bus_bytes_per_s is None else f"{name} at {format_rate(entry.bus_bytes_per_s)}"


def _judge_memory(case: Case) -> _Judgement:
    """Return the verdict on a run without timed steps."""
    if not case.memory.per_rank:
        return _INCONCLUSIVE, f"no step of {case.run.name} was timed"
    status, sentence = _judge_peak(case)
    is_snapshot = any(case.memory.is_history(rank.rank) for rank in case.memory.per_rank)
    return status, sentence if is_snapshot else f"{sentence}; no step was timed"


def _judge_peak(case: Case) -> _Judgement:
    """Return status and sentence for the highest peak of any rank; at least one must have memory.

    The sentence on a snapshot describes what holds the memory and what to change, regardless of the status.
    """
    rank = max(case.memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    risk = next((each for each in case.findings if _is_risk(case, each, rank)), None)
    untagged_ratio = rank.untagged_bytes / max(1, rank.peak_bytes)
    is_owner_unknown = untagged_ratio >= _MIN_RATIO
    is_unsure = is_owner_unknown or bool(case.of_ranks)
    status = _RISK if risk else _INCONCLUSIVE if is_unsure else _OK
    if case.memory.is_history(rank.rank):
        return status, f"{_describe_history(case, rank, risk)}{case.of_ranks}"
    largest = max(DISPLAY_ORDER, key=lambda tenant: rank.tenants.get(tenant, 0))
    held = rank.tenants.get(largest, 0)
    share = f" ({_say(largest)} {format_percent(held / rank.peak_bytes)})" if held else ""
    if risk:
        reason = risk.sentence
    elif is_owner_unknown:
        reason = f"{format_percent(untagged_ratio)} of it could not be attributed"
    else:
        possible = next((each for each in case.findings if _frees_a_tenth(each, rank)), None)
        reason = (
            f"no finding above low confidence frees a tenth of it; {possible.id} below may"
            if possible
            else "fixing any of the tested causes would free less than a tenth of it"
        )
    return status, f"{_format_peak(rank)}{share}: {reason}{case.of_ranks}"


def _is_risk(case: Case, finding: Finding, rank: RankMemory) -> bool:
    if finding.confidence is Confidence.LOW:
        return False
    return case.causes[finding.cause].is_risk or _frees_a_tenth(finding, rank)


def _frees_a_tenth(finding: Finding, rank: RankMemory) -> bool:
    return finding.saving_bytes is not None and finding.saving_bytes[1] >= _MIN_RATIO * rank.peak_bytes


def _format_peak(rank: RankMemory) -> str:
    bound = BOUND_WORDS[rank.bounds.get("peak_bytes", Bound.EXACT)]
    return f"peak {bound}{format_bytes(rank.peak_bytes)} on rank {rank.rank}"


def _say(tenant: Tenant) -> str:
    return tenant.value.replace("_", " ")


def _describe_history(case: Case, rank: RankMemory, risk: Finding | None) -> str:
    """Return the sentence about a snapshot; it starts with the last failed allocation."""
    moment = f", in the {rank.peak_phase}" if rank.peak_phase else ""
    step = f" of step {rank.peak_step}" if rank.peak_phase and rank.peak_step >= 0 else ""
    growth = _describe_growth(case.comparison) if case.comparison else ""
    failed = [entry for entry in case.memory.out_of_memory if entry.rank == rank.rank]
    lead = f"{_describe_request(failed[-1])}; " if failed else ""
    advice = _describe_advice(case, [risk, *case.findings] if risk else case.findings)
    return f"{lead}{_format_peak(rank)}{moment}{step}{growth}: {_describe_holders(rank)}; {advice}"


def _describe_request(failure: OutOfMemory) -> str:
    """Return what was requested and what was free, and if that would have sufficed in one piece."""
    text = f"out of memory: {format_bytes(failure.requested_bytes)} requested"
    if failure.device_free_bytes is not None:
        text += f", {format_bytes(failure.device_free_bytes)} free on the device"
    if failure.is_limited:
        return f"{text}: a limit of the process refused it"
    if failure.would_fit_defragmented:
        return f"{text}; a defragmented pool would have had room"
    if failure.short_bytes:
        return f"{text}; even a defragmented pool is {format_bytes(failure.short_bytes)} short"
    return text


def _describe_holders(rank: RankMemory) -> str:
    """Return the largest tenants with size and share, and the bytes without a known owner."""
    least = max(1, _MIN_TENANT_RATIO * rank.peak_bytes)
    largest = sorted(DISPLAY_ORDER, key=lambda tenant: -rank.tenants.get(tenant, 0))[:_MAX_TENANTS]
    named = [tenant for tenant in largest if rank.tenants.get(tenant, 0) >= least]
    by_sizes = {part.tenant for part in rank.parts if part.basis is Basis.SIZES}
    shares = [
        f"{_say(tenant)} {'~' if tenant.value in by_sizes else ''}{_format_share(rank, rank.tenants[tenant])}"
        for tenant in named
    ]
    parts = [f"held by {' and '.join(shares)}"] if shares else []
    if rank.untagged_bytes >= max(1, _MIN_RATIO * rank.peak_bytes):
        if not named:
            return "none of its owners is known"
        parts.append(f"the owner of {_format_share(rank, rank.untagged_bytes)} is not known")
    return ", ".join(parts) or "no owner holds a hundredth of it"


def _format_share(rank: RankMemory, size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({format_percent(size_bytes / max(1, rank.peak_bytes))})"


def _describe_growth(comparison: Comparison) -> str:
    """Return the change of the peak against the baseline, and the group that grew or shrank the most."""
    change = comparison.memory_delta.get("peak_bytes")
    if change is None or not comparison.groups:
        return ""
    baseline = shorten(printable(comparison.baseline), _MAX_PLACE)
    if not change:
        return f", as much as {baseline}"
    main = max(comparison.groups, key=lambda group: group.delta_bytes * (1 if change > 0 else -1))
    size = format_bytes(abs(main.delta_bytes))
    return (
        f", {format_bytes(abs(change))} {'more' if change > 0 else 'less'} than {baseline}"
        f" (largest change: {_name_owner(main)}, {'+' if change > 0 else '-'}{size})"
    )


def _name_owner(group: GroupChange) -> str:
    path, colon, rest = group.where.partition(":")
    place = f"{path.rpartition('/')[2]}{colon}{rest}" or group.operator
    if group.before_history:
        place = "from before the history"
    place = f" {shorten(printable(place), _MAX_PLACE)}" if place and not group.merged else ""
    return f"{group.tenant.replace('_', ' ')}{place}"


def _describe_advice(case: Case, findings: Sequence[Finding]) -> str:
    """Return the fix of the first finding in a few words, and the bytes that it frees."""
    likely = [each for each in findings if each.confidence is not Confidence.LOW]
    # running out of memory is the event; the advice is the finding that frees the most
    freeing = [each for each in likely if each.saving_bytes is not None and each.saving_bytes[1] > 0]
    finding = next(iter(freeing or likely or findings), None)
    if finding is None:
        return "no tested change would free much of it"
    frees = ""
    if finding.saving_bytes is not None and finding.saving_bytes[1] > 0:
        frees = ", frees " + " to ".join(dict.fromkeys(map(format_bytes, finding.saving_bytes)))
    doubt = ", low confidence" if finding.confidence is Confidence.LOW else ""
    # without an action, the first line of the fix that is not a title
    lines = (line.strip() for line in finding.fix.split("\n") if not line.rstrip().endswith(":"))
    first = shorten(next(filter(None, lines), finding.cause.replace("_", " ")), _MAX_FIX)
    action = case.causes[finding.cause].action or first
    return f"to change: {action} ({finding.id}{frees}{doubt})"


def _describe_ending(case: Case) -> str:
    """Return what the verdict does not cover ("rank 1 ended before the recording"), or an empty string.

    A program that ended with a failed allocation is described by its memory at that moment; other programs by
    how their processes ended, if known.
    """
    failures = _find_failed_allocations(case.gaps, case.memory)
    described = {end.rank for end in case.endings} | failures.keys()
    parts = [describe_out_of_memory(entry) for entry in list(failures.values())[:1]]
    if len(failures) > 1:
        parts.append(f"{len(failures) - 1} more ranks did as well")
    if case.endings and not failures:
        parts.append(describe_endings(case.endings))
    return ", ".join([*parts, *list_lost_ranks(case.gaps, described)])


def _has_failed(endings: Sequence[RankEnd]) -> bool:
    """Return True if a job failed by itself and was not ended from outside."""
    causes = [end for end in endings if end.is_first] or [end for end in endings if end.has_failed]
    return any(end.signal not in _INTERRUPTS and end.error != _INTERRUPT_ERROR for end in causes)


def has_run_out_of_memory(gaps: Sequence[Gap], memory: Memory) -> bool:
    """Return True if a rank's program ended with a failed allocation."""
    return bool(_find_failed_allocations(gaps, memory))


def _find_failed_allocations(gaps: Sequence[Gap], memory: Memory) -> dict[int, OutOfMemory]:
    """Return the last failed allocation of each rank whose program failed."""
    failed = {gap.rank for gap in gaps if gap.kind is GapKind.PROGRAM_FAILED}
    return {entry.rank: entry for entry in memory.out_of_memory if entry.rank in failed}
