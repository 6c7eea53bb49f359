"""ZP502 cpu_bound_launch: the host launches slower than kernels run, so the device runs out of work.

Signal: idle time with nothing queued in which the host was active (its recorded events start or end at most
1 ms apart), and that is not a wait for the device, the allocator, a data loader or an optimizer on the CPU;
on most ranks, in the typical step. Where the recording shows nothing of the host, it may sleep or wait for a
lock: that is a gap, not a finding. If one host is later than the others but just as fast, only its rank is
idle, and the others wait for it meanwhile. That also limits the pace of all hosts. At least 10 % of the step
is a finding (docs/thresholds.md), at least 15 % has high confidence: healthy CPU ranks, two on two cores, had
up to 8 %.

On a CPU rank: the thread of the training loop is in no operator, wait or collective launch, and surely used
its processor (``host_idle``). The recorder itself takes some of that, so the finding never has high
confidence. That is processor time, so it is compared with the step without the time in which the thread was
ready but had no processor: other programs on the machine make a step longer, and no Python cheaper. If it is
too little for a finding, but all time outside of operators is enough, the rule is untested. A recording of
Python calls (``with_stack=True``) slows the host several times: low confidence.

If the host is late, the next gather is late too, and its transfer is exposed: that is lost as well. Ranks
that wait for a processor do so during that Python, too: what is lost grows as the step does. With the fix the
hosts launch in half of the time, or instantly. A single late host is a different finding.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, find_places
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.host_time import (
    MAX_EXEMPT_RANKS_RATIO,
    has_device,
    is_host_inflated,
    is_inference,
    is_short_of_processors,
    mean_of_most_ranks,
    median_of_most_ranks,
    moves_state,
    rate_confidence,
    sum_columns,
)
from zprof.analysis.time.own_time import OwnTime, measure_own_time
from zprof.analysis.time.own_work import LineShare, locate_idle
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap, GapKind
from zprof.rules.compute.idle_time import find_missing_host_gap, find_single_occurrence_gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.waiting.late_ranks import name_place

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO = 0.10
_HIGH_CONFIDENCE_RATIO = 0.15
#: Above 1, because ranks that run out of work at different times wait for each other.
_MAX_SAVING_RATIO = 1.15

_WHAT_ELSE = "it may run Python, sleep, or wait for a lock or a file"
_FIND_LINE = "py-spy record --idle --native -- python train.py shows which line of the program that is"
_LINE_REMEDY = "take what that line waits for or computes out of the step: into a thread, or every N steps"
_INFERENCE_FIX = (
    "model = torch.compile(model, mode='reduce-overhead')  # or CUDA graphs of the decoding step\n"
    "larger batches; fewer hooks, and fewer Python statements, in each layer"
)
_CPU_INFERENCE_FIX = (
    "model = torch.compile(model)  # fewer operators, and less Python between them\n"
    "larger batches; fewer hooks, and fewer Python statements, in each layer"
)


class LateHosts(Struct, frozen=True, kw_only=True):
    """Means per step. ``typical_ns``: the idle time of the median step. ``unhidden_ns``: collectives during
    the idle gaps that no compute could hide.
    ``communication_ns``: all exposed wait and transfer. ``queued_ns``: the threads of CPU ranks were ready
    but had no processor; it is in ``wall_ns`` and not in ``idle_ns``.
    """

    wall_ns: float
    queued_ns: float
    idle_ns: float
    typical_ns: float
    exposed_ns: float
    unhidden_ns: float
    communication_ns: float

    @property
    def unqueued_wall_ns(self) -> float:
        """The step without waits for a processor; at least 1."""
        return max(1.0, self.wall_ns - self.queued_ns)

    @property
    def share(self) -> float:
        """This idle time as a share of the step."""
        return self.idle_ns / self.unqueued_wall_ns

    @property
    def typical_share(self) -> float:
        """The same for the median step."""
        return self.typical_ns / self.unqueued_wall_ns

    @property
    def max_saving_ns(self) -> float:
        """The most that faster hosts save: this idle time, and communication that late launches expose."""
        return _MAX_SAVING_RATIO * (self.idle_ns + self.communication_ns)

    @property
    def lost_ns(self) -> float:
        """This idle time with its part of waits for a processor, and transfer that late launches expose."""
        return self.share * self.wall_ns + self.exposed_ns


def cpu_bound_launch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the hosts of all ranks are slower than their devices."""
    missing = find_missing_host_gap(analysis, Cause.CPU_BOUND_LAUNCH) or _find_missing_operators_gap(analysis)
    if missing:
        return missing
    late_hosts = measure_late_hosts(analysis)
    if min(late_hosts.share, late_hosts.typical_share) < _MIN_STEP_RATIO:
        once = find_single_occurrence_gap(
            analysis, Cause.CPU_BOUND_LAUNCH, _MIN_STEP_RATIO, *_list_launch_columns(analysis), "unseen_ns"
        )
        find_unseen_gap = _find_unseen_device_host_gap if has_device(analysis) else _find_unseen_thread_gap
        return once or find_unseen_gap(analysis, late_hosts)
    words = analysis.time.words
    is_short = is_short_of_processors(analysis)
    description = (
        f"the host cannot keep up: nothing is queued for {format_ns(late_hosts.idle_ns)} {words.of_each_step}"
        if has_device(analysis)
        else f"Python between operators takes {format_ns(late_hosts.idle_ns)} {words.of_each_step}"
    )
    basis = " of it without waits for a processor" if is_short else ""
    idle = find_idle_line(analysis)
    return make_finding(
        analysis,
        Cause.CPU_BOUND_LAUNCH,
        sentence=f"{description} ({late_hosts.share:.0%}{basis})",
        evidence=[
            make_launch_evidence(late_hosts.idle_ns),
            make_fact("share_of_step/without_queue" if is_short else "share_of_step", late_hosts.share),
            *([make_fact("processor_wait_per_step", late_hosts.queued_ns)] if is_short else []),
            make_fact("exposed_transfer_nothing_queued", late_hosts.exposed_ns),
            make_fact("collectives_hidden_by_idle", late_hosts.unhidden_ns),
        ],
        saving_ns=(0.0, late_hosts.lost_ns),
        severity=rate_severity(late_hosts.lost_ns, late_hosts.wall_ns),
        confidence=_rate_confidence(analysis, late_hosts.share),
        fix=choose_launch_fix(analysis),
        disprove="double the micro-batch and record again: kernels take longer but launches do not, so the "
        "idle time of a step stays the same or shrinks; if it doubles, launching is not the cause",
        location=idle.location if idle is not None else None,
    )


def measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    """Measure the idle time that slow launches cause on most ranks; it is measured once per analysis."""
    return analysis.compute_once(_measure_late_hosts)


def _measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    columns = _list_launch_columns(analysis)
    shared_loss = _measure_waits_for_one_host(analysis, columns)
    mean_loss, median_loss = (
        (float(shared_loss.mean()), float(np.median(shared_loss))) if len(shared_loss) else (0.0, 0.0)
    )
    return LateHosts(
        wall_ns=mean_wall_ns(analysis),
        queued_ns=0.0 if has_device(analysis) else float(analysis.host.ints("queued_ns").mean()),
        idle_ns=max(mean_of_most_ranks(analysis, *columns), mean_loss),
        typical_ns=max(median_of_most_ranks(analysis, *columns), median_loss),
        exposed_ns=mean_of_most_ranks(analysis, "launch_exposed_ns"),
        unhidden_ns=_measure_unhidden_ns(analysis),
        communication_ns=float(
            sum_columns(analysis.steps, ("exposed_wait_ns", "exposed_transfer_ns")).mean()
        ),
    )


def _list_launch_columns(analysis: RunAnalysis) -> list[str]:
    """List the parts of the idle time that slow launches cause.

    An optimizer on the CPU is offload; one that only launches slowly is not.
    """
    return ["launch_ns"] if moves_state(analysis) else ["launch_ns", "optimizer_active_ns"]


def find_idle_line(analysis: RunAnalysis) -> LineShare | None:
    """Return the line on which the hosts are while they run no operator; it is found once per analysis."""
    return analysis.compute_once(_locate_idle)


def _locate_idle(analysis: RunAnalysis) -> LineShare | None:
    return locate_idle(analysis.source, analysis.tracks)


def _describe_line(idle: LineShare | None) -> str:
    if idle is None:
        return _WHAT_ELSE
    return f"{idle.share:.0%} of that time it is at {name_place(idle.location)}"


def _find_unseen_device_host_gap(analysis: RunAnalysis, late_hosts: LateHosts) -> Gap | None:
    """Return a gap if nothing shows what most hosts did for a good part of the step."""
    unseen_ns = min(mean_of_most_ranks(analysis, "unseen_ns"), median_of_most_ranks(analysis, "unseen_ns"))
    share = unseen_ns / late_hosts.wall_ns
    if share < _MIN_STEP_RATIO:
        return None
    idle = find_idle_line(analysis)
    return untested_gap(
        Cause.CPU_BOUND_LAUNCH,
        f"the device has no work for {format_ns(unseen_ns)} of each step ({share:.0%}) while the recording "
        f"shows nothing of the host: {_describe_line(idle)}",
        _FIND_LINE if idle is None else _LINE_REMEDY,
    )


def _find_unseen_thread_gap(analysis: RunAnalysis, late_hosts: LateHosts) -> Gap | None:
    """Return a gap if the threads of most CPU ranks may have run Python for a good part of the step."""
    columns = [*_list_launch_columns(analysis), "unseen_ns"]
    between_ns = min(mean_of_most_ranks(analysis, *columns), median_of_most_ranks(analysis, *columns))
    share = between_ns / late_hosts.wall_ns
    if share < _MIN_STEP_RATIO:
        return None
    amount = f"{format_ns(between_ns)} of each step ({share:.0%})"
    no_operator = f"the training loop's thread runs no operator for {amount}"
    if not analysis.host.bools("is_timed").all():
        return untested_gap(
            Cause.CPU_BOUND_LAUNCH,
            f"{no_operator}: {_WHAT_ELSE}",
            "record with zprof record, which samples the processor time of that thread",
        )
    surely_ran = (
        f"in which it surely used its processor for only {format_ns(late_hosts.idle_ns)}"
        if late_hosts.idle_ns >= 1
        else "in which it need not have used its processor at all"
    )
    if not is_short_of_processors(analysis):
        idle = find_idle_line(analysis)
        return untested_gap(
            Cause.CPU_BOUND_LAUNCH,
            f"{no_operator}, {surely_ran}: {_describe_line(idle)}",
            _FIND_LINE if idle is None else _LINE_REMEDY,
        )
    queued = f"{format_ns(late_hosts.queued_ns)} ({late_hosts.queued_ns / late_hosts.wall_ns:.0%})"
    return untested_gap(
        Cause.CPU_BOUND_LAUNCH,
        f"the processors were busy, and the training loop's thread waited for one for {queued} of each step; "
        f"it runs no operator for {amount}, {surely_ran}: {_WHAT_ELSE}",
        "record while nothing else uses the processors, or with fewer ranks on them",
        GapKind.BUSY_PROCESSORS,
    )


def _measure_waits_for_one_host(analysis: RunAnalysis, columns: list[str]) -> Floats:
    """Measure, per step, the time one rank's host lost at the pace of all hosts while the others waited.

    Empty on CPU ranks, and if it is unknown how much the hosts differ.
    """
    own_time = measure_own_time(analysis) if has_device(analysis) and analysis.run.world_size > 1 else None
    if own_time is None or not own_time.is_host_known or not len(own_time.numbers):
        return np.zeros(0)
    lost_ns = _make_step_table(own_time, analysis.host, columns)
    waited_ns = _make_step_table(own_time, analysis.steps, ["exposed_wait_ns"])
    common_idle = np.clip(lost_ns - np.clip(own_time.idle, 0.0, None), 0.0, None).max(axis=1)
    delayed_ns: Floats = np.quantile(lost_ns + waited_ns, MAX_EXEMPT_RANKS_RATIO, axis=1, method="lower")
    lost: Floats = np.minimum(common_idle, delayed_ns)
    return lost


def _make_step_table(own_time: OwnTime, rows: Columns, columns: list[str]) -> Floats:
    """Return the sum of these columns for each step (row) and rank (column) of the own time."""
    wanted = np.repeat(own_time.numbers, len(own_time.ranks)), np.tile(own_time.ranks, len(own_time.numbers))
    places = find_places(wanted, (rows.ints("step"), rows.ints("rank")))
    return sum_columns(rows, columns)[places].reshape(len(own_time.numbers), len(own_time.ranks))


def _find_missing_operators_gap(analysis: RunAnalysis) -> Gap | None:
    if has_device(analysis) or analysis.steps.ints("compute_ns").any():
        return None
    return untested_gap(
        Cause.CPU_BOUND_LAUNCH,
        "no operator of the main thread was recorded",
        "record with activities=[ProfilerActivity.CPU]",
    )


def _measure_unhidden_ns(analysis: RunAnalysis) -> float:
    steps = analysis.steps
    hidden_columns = [name for name in analysis.host.names if name.endswith("_under_ns")]
    hidden_by_compute = float(steps.ints("overlapped_ns").mean()) - float(
        sum_columns(analysis.host, hidden_columns).mean()
    )
    available_compute = float(steps.ints("compute_ns").mean()) - max(0.0, hidden_by_compute)
    return max(0.0, mean_of_most_ranks(analysis, "launch_under_ns") - max(0.0, available_compute))


def make_launch_evidence(idle_ns: float) -> Fact:
    """Return the evidence that both the rule and the replay rest on."""
    return make_fact("idle_nothing_queued_per_step", idle_ns)


def _rate_confidence(analysis: RunAnalysis, share: float) -> Confidence:
    """Return the confidence: never high on a CPU, low where recording itself slowed the host."""
    if is_host_inflated(analysis):
        return Confidence.LOW
    if has_device(analysis):
        return rate_confidence(analysis, share, _HIGH_CONFIDENCE_RATIO, _MIN_STEP_RATIO)
    return Confidence.MEDIUM if share >= _HIGH_CONFIDENCE_RATIO else Confidence.LOW


def choose_launch_fix(analysis: RunAnalysis) -> str:
    """Choose the applicable fix: CUDA graphs only on devices, torch.compile only if not already used."""
    if is_inference(analysis):
        return _CPU_INFERENCE_FIX if is_on_cpu(analysis) else _INFERENCE_FIX
    is_compiled = bool(analysis.host.bools("is_compiled").any())
    lines = ["optimizer = torch.optim.AdamW(parameters, fused=True)"]
    if has_device(analysis) and is_compiled:
        lines.insert(0, "model = torch.compile(model, mode='reduce-overhead')  # adds CUDA graphs")
    elif has_device(analysis):
        lines.insert(0, "model = torch.compile(model)  # or mode='reduce-overhead': CUDA graphs")
    elif (idle := find_idle_line(analysis)) is None:
        lines.insert(0, "py-spy record --native -- python train.py  # which Python that is")
    else:
        lines.insert(0, f"{name_place(idle.location)} takes {idle.share:.0%} of that time: {_LINE_REMEDY}")
    if not has_device(analysis) and not is_compiled:
        lines.append("model = torch.compile(model)  # fewer operators, and less Python between them")
    if is_compiled:
        lines.append("TORCH_LOGS=graph_breaks python train.py  # what runs outside of compiled regions")
    lines.append("larger micro-batches; fewer hooks, and fewer Python statements, in each layer")
    return "\n".join(lines)
