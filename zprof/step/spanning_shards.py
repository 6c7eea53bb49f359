"""Find shards that span hosts over a slow link, and estimate and play the step with shards within hosts.

A message of a ring over n ranks on H hosts of h ranks moves (n-1)/n of its bytes over each link. Within a
host it moves (h-1)/h at the host's rate. An all_reduce of a shard between hosts moves 2 (H-1)/H of bytes/h at
the current rate. If the h ranks of a host share one network link, their h rings share its rate.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    count_ranks_by_host,
    find_missing_collectives,
    make_untested,
    mean_wall_ns,
)
from zprof.analysis.columns import Columns
from zprof.analysis.time.decomposition import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.step.bandwidth import bandwidth_within_hosts, bus_bandwidths
from zprof.step.links import read_latencies
from zprof.step.one_rank import (
    StepModel,
    TimedPass,
    list_timed_passes,
    model_step,
    sum_closing_gathers_ns,
)
from zprof.step.tasks import Graph
from zprof.step.traffic import Messages, StepTraffic, find_sharding, read_step_traffic

_SHARDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
#: A link must be slower than this share of the bandwidth within a host to be worth a fix.
_LOW_RATIO = 0.5
#: Minimum share of the step that is exposed.
_MIN_STEP_RATIO = 0.05
#: Bandwidth within a host if none was recorded: without NVLink (a PCIe 4.0 x16 slot), and with NVLink of
#: A100s and H100s (nccl-tests).
WITHIN_HOST_BYTES_PER_S, _NVLINK_BYTES_PER_S = 20e9, (230e9, 360e9)
#: Minimum speed-up within a host in this case.
_ASSUMED_TIMES = 2.0


class SlowSharding(Struct, frozen=True, kw_only=True):
    """The group whose recorded messages shard over hosts on a slow link.

    ``within``: bandwidth within a host, None if not measured.
    """

    step: StepModel
    messages: Messages
    hosts: int
    per_host: int
    measured_bytes_per_s: float
    within: float | None


def find_slow_sharding(analysis: RunAnalysis, baseline: RunAnalysis | None) -> SlowSharding | Untested | None:
    """Return the group that shards over hosts if it is exposed and its link is slow."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    sharded = [messages for messages in traffic.both if messages.kind in _SHARDS] if traffic else []
    if traffic is None or not sharded or traffic.exposed_ns <= _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    counted = [
        count_ranks_by_host(analysis, group)
        for group in sorted(sharded[0].rows.texts("group").list_distinct())
    ]
    if any(hosts is None for hosts in counted):
        return make_untested("hosts_unknown")
    layouts = {(len(hosts), count) for hosts in counted if hosts for count in hosts.values()}
    hosts, per_host = min(layouts)
    if len(layouts) > 1 or hosts < 2 or per_host < 2:  # uneven, within a host, or one rank per host
        return None
    return _measure_spanning(analysis, baseline, traffic, sharded[0], (hosts, per_host))


def _measure_spanning(
    analysis: RunAnalysis,
    baseline: RunAnalysis | None,
    traffic: StepTraffic,
    messages: Messages,
    layout: tuple[int, int],
) -> SlowSharding | None:
    each = bus_bandwidths(analysis, messages.rows, messages.kind)
    if not len(each):
        return None
    measured_bytes_per_s = float(np.median(each.floats("bytes_per_s")))
    runs = (analysis, baseline) if baseline else (analysis,)
    within = bandwidth_within_hosts(runs, messages.kind, messages.bytes)
    if measured_bytes_per_s >= (_LOW_RATIO * within if within else WITHIN_HOST_BYTES_PER_S):
        return None
    return SlowSharding(
        step=model_step(analysis, traffic),
        messages=messages,
        hosts=layout[0],
        per_host=layout[1],
        measured_bytes_per_s=measured_bytes_per_s,
        within=within,
    )


def measure_sharding_saving_ns(spanning: SlowSharding, *, cpu: bool) -> tuple[float, float]:
    """Return the minimum and maximum saving per step of shards within a host."""
    rates = (
        (spanning.within, spanning.within)
        if spanning.within
        else (_ASSUMED_TIMES * spanning.measured_bytes_per_s, float("inf"))
    )
    step = spanning.step
    max_exposed, min_exposed = (
        _exposed_with_hsdp(spanning, rates[0])[1],
        _exposed_with_hsdp(spanning, rates[1])[0],
    )
    blocked = _blocked_ns(spanning, rates[0]) if cpu else 0.0
    return step.bounded(
        step.exposed_ns - max_exposed - blocked - step.missed_ns / 2, step.exposed_ns - min_exposed
    )


def _blocked_ns(spanning: SlowSharding, rate: float) -> float:
    """Estimate the time that reduce_scatters, and an additional message for each, may block a CPU rank."""
    reduces = [one.reduce_ns for one in _hsdp_passes(spanning, rate) if one.reduce_ns]
    messages = sum(messages.count for messages in spanning.step.traffic.both)
    return sum(reduces) + spanning.step.idle_ns * len(reduces) / messages


def _exposed_with_hsdp(spanning: SlowSharding, rate: float) -> tuple[float, float]:
    min_exposed, max_exposed = spanning.step.shown_ns(_hsdp_passes(spanning, rate))
    after = _transfer_scale(spanning, rate) * sum_closing_gathers_ns(spanning.step.traffic, 1)
    return (min_exposed + after, max_exposed + after)


def _transfer_scale(spanning: SlowSharding, rate: float) -> float:
    """Return a message's time within a host relative to now: bytes (h-1)/h instead of (n-1)/n."""
    ranks, size = spanning.per_host, spanning.per_host * spanning.hosts
    return (ranks - 1) / ranks / ((size - 1) / size) * spanning.measured_bytes_per_s / rate


def _hsdp_passes(spanning: SlowSharding, rate: float) -> list[TimedPass]:
    """Return the passes of the step with HSDP."""
    traffic, times = spanning.step.traffic, _transfer_scale(spanning, rate)
    reduces = traffic.reduces
    replicas = 0.0
    if reduces:
        moved = 2 * (spanning.hosts - 1) / spanning.hosts * reduces.bytes / spanning.per_host
        replicas = (reduces.latency_ns or 0.0) + moved / spanning.measured_bytes_per_s * 1e9
    return [
        replace(
            one,
            gather_ns=one.gather_ns * times,
            reduce_ns=max(1.0, one.reduce_ns * times) if one.reduce_ns else 0.0,
            replicate_ns=replicas if one.reduce_ns else 0.0,
        )
        for one in list_timed_passes(traffic, 1)
    ]


class SpanningShards(Struct, frozen=True, kw_only=True):
    """A group that shards over hosts: number of hosts, ranks per host, and rates in bytes per second.

    ``within``: lower and upper bound of the rate within a host; ``measured``: the rate was recorded.
    """

    rows: Columns
    hosts: int
    per_host: int
    seen: float
    within: tuple[float, float]
    measured: bool


def find_spanning_shards(analysis: RunAnalysis) -> SpanningShards | None:
    """Return the group that shards over hosts on a slow link, None without one or if hosts are unknown."""
    sharding = find_sharding(analysis)
    places = np.sort(np.concatenate((sharding.gathers.row, sharding.reductions.row)))
    own_rows = select_kind(analysis.collectives.at(places), *_SHARDS)
    counted = [count_ranks_by_host(analysis, group) for group in own_rows.texts("group").list_distinct()]
    layouts = {(len(each), count) for each in counted if each for count in each.values()}
    if len(layouts) != 1 or any(each is None for each in counted):
        return None
    hosts, per_host = next(iter(layouts))
    if hosts < 2 or per_host < 2:
        return None
    rates = [bus_bandwidths(analysis, own_rows, kind).floats("bytes_per_s") for kind in _SHARDS]
    if not any(len(each) for each in rates):
        return None
    seen = float(np.median(np.concatenate(rates)))
    inside = bandwidth_within_hosts(
        (analysis,), CollectiveKind.ALL_GATHER, float(np.median(own_rows.ints("bytes")))
    )
    slow = WITHIN_HOST_BYTES_PER_S if seen < _LOW_RATIO * WITHIN_HOST_BYTES_PER_S else _NVLINK_BYTES_PER_S[0]
    within = (inside, inside) if inside else (slow, _NVLINK_BYTES_PER_S[1])
    if seen >= _LOW_RATIO * within[0]:
        return None
    return SpanningShards(
        rows=own_rows, hosts=hosts, per_host=per_host, seen=seen, within=within, measured=inside is not None
    )


def shard_within_host(analysis: RunAnalysis, graph: Graph, found: SpanningShards) -> list[Graph]:
    """Return the step with shards within hosts, with one network link per host and with one per rank."""
    return [
        _shard_at_rate(analysis, graph, found, found.within[0], float(found.per_host)),
        _shard_at_rate(analysis, graph, found, found.within[1], 1.0),
    ]


def _shard_at_rate(
    analysis: RunAnalysis, graph: Graph, found: SpanningShards, rate: float, sharing: float
) -> Graph:
    size = found.hosts * found.per_host
    known = read_latencies(analysis)
    part = (found.per_host - 1) / found.per_host / ((size - 1) / size)
    replica = 2 * (found.hosts - 1) / found.hosts / found.per_host * sharing / ((size - 1) / size)
    reduces = set(select_kind(found.rows, CollectiveKind.REDUCE_SCATTER).row.tolist())
    ratio, after = {}, {}
    transfer_ns = found.rows.ints("transfer_ns").tolist()
    for row, transfer in zip(found.rows.row.tolist(), transfer_ns, strict=True):
        ratio[row] = min(1.0, part * found.seen / rate)
        if row in reduces:
            latency = min(known.get_for_row(row) or 0.0, transfer)
            after[row] = latency + (transfer - latency) * replica
    from zprof.step.added_messages import shard_within_hosts  # only a playable step of several hosts

    return shard_within_hosts(graph, ratio, after, _place_within_host(analysis))


def _place_within_host(analysis: RunAnalysis) -> dict[int, int]:
    """Return the index of each rank within its host; ranks with equal index hold the same shard."""
    counts: dict[str, int] = {}
    found = {}
    for rank in sorted(analysis.hosts):
        host = analysis.hosts[rank]
        found[rank] = counts.get(host, 0)
        counts[host] = found[rank] + 1
    return found
