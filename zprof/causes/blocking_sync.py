"""ZP503: the host waits for its device repeatedly, and each time the queue runs dry.

The wait for the last kernel is not a loss: it would only move elsewhere. The loss is the time from the end of
that kernel until the next one runs: the host wakes up, continues and launches. Signs: the idle time within
calls that block until the device is done (:mod:`zprof.analysis.time.host_calls`), and up to 1 ms of the gap
right after each, on most ranks. At least 1 % of the step is a note (docs/thresholds.md), at least 2 % a
finding. One such wait per step is normal for reading the loss: a note at most. The first wait of a window
contains the start of the profiler (0.2 to 0.5 s measured). A wait that does not recur in most steps is not
reported, and in a single step the longest wait is ignored (:mod:`zprof.analysis.time.host_time`).

The evidence and the fixes are those of the operators and kinds of wait that cost most. With the fix the
blocking calls return at once.

A CPU rank can read a scalar immediately. There the sign is the exposed transfer of collectives that the rank
waits for right after reading a scalar: all collectives in flight have to finish, needed or not.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.analysis.time.host_time import (
    describe_longest_wait,
    find_missing_host,
    find_single_occurrence,
    has_device,
    is_inference,
    list_wait_groups,
    locate_host_waits,
    make_wait_facts,
    mean_of_most_ranks,
    rate_confidence,
)
from zprof.base.formatting import format_frequency
from zprof.causes.cause import Cause, Observation, Sign, Signal
from zprof.causes.host_fixes import choose_wait_fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import (
    WAITS_FOR_EVENT,
    are_calls,
    await_device,
    await_long_copies,
    count_per_step,
    keep_recurring,
    mark_waits_after_reads,
)
from zprof.step.tasks import Bools, Graph, RankGraph

#: Minimum share of the step: for a note, for a finding, and for high confidence.
_MIN_STEP_RATIO, _MEDIUM_STEP_RATIO, _SURE_STEP_RATIO = 0.01, 0.02, 0.05
#: Up to this many waits per step are normal, because the loss is read: a note, unless they cost much.
_MAX_NORMAL_COUNT = 1.5
#: Minimum excess of waits per step and rank over the baseline.
_MORE_WAITS = 0.5

CAUSE = Cause(
    id="ZP503",
    name="blocking_sync",
    meaning="The host waits for its device again and again, and each time the queue runs dry.",
    terms=("idle_ns", "exposed_transfer_ns"),
    sign=Sign.HOST_WAITS,
    # a host that waits at the end of a step launches the next step's first gather late
    produces=(Sign.FIRST_GATHER,),
    idles_device=True,
    is_of_host=True,
    amounts=("blocking_waits_per_step", "blocking_calls_per_step"),
    sentence="the host waits for all running work {count:.0f} times {per_step}, which costs {lost:ns} "
    "({share:.1%})",
    observed="the host waits for the device {frequency}: without these waits {step_is} shorter",
    evidence={
        "idle_in_waits_per_step": ("idle in and right after waits for the device {per_step}", Unit.NS),
        "exposed_transfer_of_reads_per_step": (
            "exposed transfer waited for right after reading a scalar, {per_step}",
            Unit.NS,
        ),
        "blocking_waits_per_step": ("waits {per_step} that left the queue empty", Unit.COUNT),
        "blocking_calls_per_step": ("calls that block until the device is done, {per_step}", Unit.COUNT),
        "wait_{number}_host_blocked_per_step": (
            "the host in {operator} ({kind}), {count} times {per_step}",
            Unit.NS,
        ),
        "wait_{number}_stalled_per_step": (
            "of it, or right after, the device idle or only copying",
            Unit.NS,
        ),
    },
    disprove="torch.cuda.set_sync_debug_mode('error') shows each such line; remove it and record again: if "
    "the idle time remains, the wait is not the cause",
)
_CPU_DISPROOF = "remove the reads and record again: if the exposed transfer remains, they are not the cause"


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the hosts of all ranks wait repeatedly."""
    if (missing := find_missing_host(analysis)) is not None:
        return missing
    on_device = has_device(analysis)
    lost_ns = mean_of_most_ranks(analysis, "sync_ns" if on_device else "read_exposed_ns")
    count = mean_of_most_ranks(analysis, "dry_syncs" if on_device else "held_reads")
    share = lost_ns / mean_wall_ns(analysis)
    if lost_ns < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        longest = describe_longest_wait(analysis)
        return find_single_occurrence(analysis, _MEDIUM_STEP_RATIO, "sync_ns", what=longest)
    # a loss is read once per step, and a decoder reads each token
    is_normal = count <= _MAX_NORMAL_COUNT or is_inference(analysis)
    return Signal(
        confidence=Confidence.LOW
        if is_normal
        else rate_confidence(analysis, share, _SURE_STEP_RATIO, _MEDIUM_STEP_RATIO),
        words={"count": count, "lost": lost_ns, "share": share},
        facts=[
            make_fact(
                "idle_in_waits_per_step" if on_device else "exposed_transfer_of_reads_per_step", lost_ns
            ),
            make_fact("share_of_step", share),
            make_fact("blocking_waits_per_step", count),
            *make_wait_facts(list_wait_groups(analysis)),
        ],
        lost_ns=lost_ns + (mean_of_most_ranks(analysis, "sync_exposed_ns") if on_device else 0.0),
        fix=choose_wait_fix(analysis),
        disprove="" if on_device else _CPU_DISPROOF,
        locate=lambda: locate_host_waits(analysis),
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the recurring calls that wait for the device; a decoder has to read each token back."""
    assert step.graph is not None
    analysis, graph = step.analysis, step.graph

    def select(rank: RankGraph) -> Bools:
        blocks = await_device(rank) & ~are_calls(rank, WAITS_FOR_EVENT)
        return keep_recurring(rank, graph.steps, blocks & ~await_long_copies(rank))

    count = count_per_step(graph, select)
    if not count or is_inference(analysis):
        return None
    return Observation(
        changed=[edits.unblock_calls(graph, select)],
        words={"frequency": format_frequency(count, analysis.time.basis)},
        facts=[
            *make_wait_facts(list_wait_groups(analysis)),
            make_fact("blocking_calls_per_step", count),
        ],
        note_below_ratio=_SURE_STEP_RATIO if count <= _MAX_NORMAL_COUNT else 0.0,
        fix=choose_wait_fix(analysis),
        locate=lambda: locate_host_waits(analysis),
    )


@CAUSE.edit
def unblock_waits(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Unblock waits for the device. On CPU ranks, delay or drop the waits at scalar reads.

    A collective in flight may be needed at the next call that uses one.
    """
    if graph.has_kernels:
        return [edits.unblock_calls(graph, await_device)]
    held = mark_waits_after_reads(analysis, graph)
    if not held:
        return []
    return [
        edits.delay_waits(graph, lambda rank: held[rank.tasks.rank]),
        edits.unblock_calls(graph, lambda rank: held[rank.tasks.rank]),
    ]


@CAUSE.doubt
def is_needed(analysis: RunAnalysis) -> bool:
    """Return True if the waits may be needed: a decoder reads each token."""
    return is_inference(analysis)


@CAUSE.compare
def is_waiting_as_often(analysis: RunAnalysis, baseline: RunAnalysis) -> bool:
    """Return True if the baseline's hosts waited for their devices about as often, at any cost."""
    now, before = (len(each.waits) / max(1, len(each.steps)) for each in (analysis, baseline))
    return 0 < now < before + _MORE_WAITS
