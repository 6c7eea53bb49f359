"""ZP502: the host launches slower than kernels run, so the device runs out of work.

Signs: idle time with nothing queued in which the host was active (its recorded events start or end at most 1
ms apart), and that is not a wait for the device, the allocator, a data loader or an optimizer on the CPU; on
most ranks, in the typical step (:mod:`zprof.analysis.time.host_time`). If the recording has no host events in
that time, the host may sleep or wait for a lock: then the cause is untested. At least 10 % of the step is a
finding (docs/thresholds.md), at least 15 % has high confidence: healthy CPU ranks, two on two cores, had up
to 8 %.

On a CPU rank the recorder itself takes some of that time, so the finding never has high confidence. Host time
there is processor time, so it is compared with the step without the time in which the thread was ready but
had no processor: other programs on the machine make a step longer, but Python no cheaper. If it is too short
for a finding, but all time outside of operators is long enough, the cause is untested. A recording of Python
calls (``with_stack=True``) slows the host several times: low confidence.

If the host is late, the next gather is late too, and its transfer is exposed: that is lost as well. Ranks
also wait for a processor during that Python code, so the loss grows with the step. With the fix the hosts
launch in half the time, or instantly. A single late host is a different finding.

After a wait for the device any host is late, until it is ahead again. If faster launches gain nothing without
these waits, the host is not slower than its device, and the waits cost that time: a note.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, make_untested
from zprof.analysis.time.host_time import (
    find_idle_line,
    find_missing_host,
    find_single_occurrence,
    find_unseen_host,
    has_device,
    is_host_inflated,
    is_short_of_processors,
    list_launch_columns,
    measure_late_hosts,
    rate_confidence,
)
from zprof.causes.cause import MIN_GAIN_RATIO, Cause, Observation, Sign, Signal
from zprof.causes.host_fixes import choose_launch_fix
from zprof.model.findings import Confidence, Finding, SourceLocation
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import LAUNCH_LEFT_RATIOS, await_device, is_launch, measure_loading_ns
from zprof.step.tasks import Graph

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO, _SURE_STEP_RATIO = 0.10, 0.15

CAUSE = Cause(
    id="ZP502",
    name="cpu_bound_launch",
    meaning="The host launches slower than kernels run, and the device runs dry between them.",
    terms=("idle_ns", "exposed_transfer_ns"),
    # while the device of one rank runs dry, the others wait for it
    other_rank_terms=("exposed_wait_ns",),
    sign=Sign.LATE_LAUNCHES,
    idles_device=True,
    is_of_host=True,
    sentence="{what} {idle:ns} {of_each_step} ({share:.0%}{basis})",
    observed="kernels are launched later than the devices could start them: with instant launches "
    "{step_is} shorter",
    evidence={
        "idle_nothing_queued_per_step": (
            "idle time {per_step} with nothing queued while the host was active",
            Unit.NS,
        ),
        "share_of_step": ("{of_step}{without}", Unit.RATIO),
        "processor_wait_per_step": ("ready, but without a processor {per_step}", Unit.NS),
        "exposed_transfer_nothing_queued": ("exposed transfer with nothing queued after it", Unit.NS),
        "collectives_hidden_by_idle": ("collectives hidden only by these gaps", Unit.NS),
    },
    disprove="double the micro-batch and record again: kernels take longer but launches do not, so the "
    "idle time of a step stays the same or shrinks; if it doubles, launching is not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the hosts of all ranks are slower than their devices."""
    if (missing := find_missing_host(analysis)) is not None:
        return missing
    on_device = has_device(analysis)
    if not on_device and not analysis.steps.ints("compute_ns").any():
        return make_untested("no_operator")
    hosts = measure_late_hosts(analysis)
    if min(hosts.share, hosts.typical_share) < _MIN_STEP_RATIO:
        columns = [*list_launch_columns(analysis), "unseen_ns"]
        once = find_single_occurrence(analysis, _MIN_STEP_RATIO, *columns)
        return once or find_unseen_host(analysis, hosts, _MIN_STEP_RATIO)
    is_short = is_short_of_processors(analysis)
    queued = [make_fact("processor_wait_per_step", hosts.queued_ns)] if is_short else []
    without = " without waits for a processor" if is_short else ""
    return Signal(
        confidence=_rate_confidence(analysis, hosts.share),
        words={
            "what": "the host cannot keep up: nothing is queued for"
            if on_device
            else "Python between operators takes",
            "idle": hosts.idle_ns,
            "share": hosts.share,
            "basis": f" of it{without}" if is_short else "",
        },
        facts=[
            make_fact("idle_nothing_queued_per_step", hosts.idle_ns),
            make_fact("share_of_step", hosts.share, without=without),
            *queued,
            make_fact("exposed_transfer_nothing_queued", hosts.exposed_ns),
            make_fact("collectives_hidden_by_idle", hosts.unhidden_ns),
        ],
        lost_ns=hosts.lost_ns,
        fix=choose_launch_fix(analysis),
        locate=lambda: _locate_idle(analysis),
    )


def _rate_confidence(analysis: RunAnalysis, share: float) -> Confidence:
    """Return the confidence: never high on a CPU, low if recording itself slowed the host."""
    if is_host_inflated(analysis):
        return Confidence.LOW
    if has_device(analysis):
        return rate_confidence(analysis, share, _SURE_STEP_RATIO, _MIN_STEP_RATIO)
    return Confidence.MEDIUM if share >= _SURE_STEP_RATIO else Confidence.LOW


def _locate_idle(analysis: RunAnalysis) -> SourceLocation | None:
    idle = find_idle_line(analysis)
    return idle.location if idle is not None else None


@CAUSE.observe
def observe(step: PlayedStep) -> Observation:
    """Return that hosts were active while nothing was queued, which bounds the saving of faster hosts."""
    assert step.graph is not None
    hosts = measure_late_hosts(step.analysis)
    changed = _launch_faster(step.analysis, step.graph)
    gain_ns = max(step.gain_ns(graph) or 0.0 for graph in changed)
    return Observation(
        changed=changed,
        facts=[make_fact("idle_nothing_queued_per_step", hosts.idle_ns)],
        max_saving_ns=hosts.max_saving_ns,
        is_doubtful=is_host_inflated(step.analysis)
        or (gain_ns >= MIN_GAIN_RATIO * step.step_ns and _is_late_after_waits_only(step)),
        fix=choose_launch_fix(step.analysis),
    )


def _is_late_after_waits_only(step: PlayedStep) -> bool:
    """Return True if hosts that never wait for their device launch early enough."""
    assert step.graph is not None
    unblocked = edits.unblock_calls(step.graph, await_device)
    before, instant = step.gain_ns(unblocked), step.gain_ns(_launch_faster(step.analysis, unblocked)[-1])
    return before is not None and instant is not None and instant - before < MIN_GAIN_RATIO * step.step_ns


@CAUSE.edit
def launch_faster(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with hosts that launch in half the time, and with hosts that launch instantly."""
    return _launch_faster(analysis, graph)


def _launch_faster(analysis: RunAnalysis, graph: Graph) -> list[Graph]:
    loading = measure_loading_ns(analysis, graph)
    return [
        edits.scale_host(graph, left, lambda rank: is_launch(rank) & (loading[rank.tasks.rank] == 0))
        for left in LAUNCH_LEFT_RATIOS
    ]
