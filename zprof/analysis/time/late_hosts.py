"""Measure the time that devices, or the threads of CPU ranks, lose because hosts launch late.

That is idle time with nothing queued in which the host was active, on most ranks. On a CPU rank: the thread
of the training loop is in no operator, wait or collective launch, and surely used its processor. If one host
is later than the others but just as fast, only its rank is idle, and the others wait for it meanwhile: that
also limits the pace of all hosts.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, find_places
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.signal import Untested
from zprof.analysis.time.host_time import (
    MAX_EXEMPT_RANKS_RATIO,
    has_device,
    is_short_of_processors,
    mean_of_most_ranks,
    median_of_most_ranks,
    moves_state,
    sum_columns,
)
from zprof.analysis.time.own_time import OwnTime, measure_own_time
from zprof.analysis.time.own_work import LineShare, locate_idle, name_place
from zprof.model.formatting import format_ns
from zprof.model.gaps import GapKind

#: Above 1, because ranks that run out of work at different times wait for each other.
_MAX_SAVING_RATIO = 1.15

_WHAT_ELSE = "it may run Python, sleep, or wait for a lock or a file"
_FIND_LINE = "py-spy record --idle --native -- python train.py shows which line of the program that is"
LINE_REMEDY = "take what that line waits for or computes out of the step: into a thread, or every N steps"


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


def measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    """Measure the idle time that slow launches cause on most ranks; it is measured once per analysis."""
    return analysis.compute_once(_measure_late_hosts)


def _measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    columns = list_launch_columns(analysis)
    shared_loss = _measure_waits_for_one_host(analysis, columns)
    mean_loss, median_loss = (
        (float(shared_loss.mean()), float(np.median(shared_loss))) if len(shared_loss) else (0.0, 0.0)
    )
    steps, host = analysis.steps, analysis.host
    under_collectives = [name for name in host.names if name.endswith("_under_ns")]
    hidden_by_compute_ns = steps.ints("overlapped_ns").mean() - sum_columns(host, under_collectives).mean()
    available_ns = max(0.0, float(steps.ints("compute_ns").mean() - max(0.0, hidden_by_compute_ns)))
    return LateHosts(
        wall_ns=mean_wall_ns(analysis),
        queued_ns=0.0 if has_device(analysis) else float(analysis.host.ints("queued_ns").mean()),
        idle_ns=max(mean_of_most_ranks(analysis, *columns), mean_loss),
        typical_ns=max(median_of_most_ranks(analysis, *columns), median_loss),
        exposed_ns=mean_of_most_ranks(analysis, "launch_exposed_ns"),
        unhidden_ns=max(0.0, mean_of_most_ranks(analysis, "launch_under_ns") - available_ns),
        communication_ns=float(sum_columns(steps, ("exposed_wait_ns", "exposed_transfer_ns")).mean()),
    )


def list_launch_columns(analysis: RunAnalysis) -> list[str]:
    """List the parts of the idle time that slow launches cause.

    An optimizer on the CPU is offload; one that only launches slowly is not.
    """
    return ["launch_ns"] if moves_state(analysis) else ["launch_ns", "optimizer_active_ns"]


def find_idle_line(analysis: RunAnalysis) -> LineShare | None:
    """Return the line on which the hosts are while they run no operator; it is found once per analysis."""
    return analysis.compute_once(_locate_idle)


def _locate_idle(analysis: RunAnalysis) -> LineShare | None:
    return locate_idle(analysis.source, analysis.tracks)


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


def find_unseen_host(analysis: RunAnalysis, hosts: LateHosts, min_ratio: float) -> Untested | None:
    """Return why it is unknown if hosts are late: nothing shows what most did for a good part of the step."""
    if not has_device(analysis):
        return _find_unseen_thread(analysis, hosts, min_ratio)
    unseen_ns = min(mean_of_most_ranks(analysis, "unseen_ns"), median_of_most_ranks(analysis, "unseen_ns"))
    share = unseen_ns / hosts.wall_ns
    if share < min_ratio:
        return None
    idle = find_idle_line(analysis)
    return Untested(
        reason=f"the device has no work for {format_ns(unseen_ns)} of each step ({share:.0%}) while the "
        f"recording shows nothing of the host: {_describe_line(idle)}",
        remedy=_FIND_LINE if idle is None else LINE_REMEDY,
    )


def _find_unseen_thread(analysis: RunAnalysis, hosts: LateHosts, min_ratio: float) -> Untested | None:
    """Return why it is unknown if most CPU ranks ran Python for a good part of the step."""
    columns = [*list_launch_columns(analysis), "unseen_ns"]
    between_ns = min(mean_of_most_ranks(analysis, *columns), median_of_most_ranks(analysis, *columns))
    share = between_ns / hosts.wall_ns
    if share < min_ratio:
        return None
    amount = f"{format_ns(between_ns)} of each step ({share:.0%})"
    no_operator = f"the training loop's thread runs no operator for {amount}"
    if not analysis.host.bools("is_timed").all():
        return Untested(
            reason=f"{no_operator}: {_WHAT_ELSE}",
            remedy="record with zprof record, which samples the processor time of that thread",
        )
    surely_ran = (
        f"in which it surely used its processor for only {format_ns(hosts.idle_ns)}"
        if hosts.idle_ns >= 1
        else "in which it need not have used its processor at all"
    )
    if not is_short_of_processors(analysis):
        idle = find_idle_line(analysis)
        return Untested(
            reason=f"{no_operator}, {surely_ran}: {_describe_line(idle)}",
            remedy=_FIND_LINE if idle is None else LINE_REMEDY,
        )
    queued = f"{format_ns(hosts.queued_ns)} ({hosts.queued_ns / hosts.wall_ns:.0%})"
    return Untested(
        reason=f"the processors were busy, and the training loop's thread waited for one for {queued} of "
        f"each step; it runs no operator for {amount}, {surely_ran}: {_WHAT_ELSE}",
        remedy="record while nothing else uses the processors, or with fewer ranks on them",
        kind=GapKind.BUSY_PROCESSORS,
    )


def _describe_line(idle: LineShare | None) -> str:
    if idle is None:
        return _WHAT_ELSE
    return f"{idle.share:.0%} of that time it is at {name_place(idle.location)}"
