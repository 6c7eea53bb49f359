"""ZP408 sharding_spans_nodes: parameters are sharded over hosts, and the link between them is slow.

The group that gathers parameters, or scatters gradients, has ranks on several hosts, several on each. More
than 5 % of the step is exposed (docs/thresholds.md), and the group's bus bandwidth is below 50 % of what
groups within a host reach for messages of similar size, in this run or in the baseline. If no such group
was recorded, the limit is 20 GB/s, which a PCIe 4.0 x16 slot provides within a host without NVLink.
That is an assumption, so the confidence is medium.

With the fix shards are within a host of h ranks, with replicas over r hosts (HSDP): a gather or
reduce_scatter of B bytes moves B (h-1)/h within a host, and an all_reduce of B / h over the replicas follows
on the current link. Each rank then holds 1/h of the states instead of 1/n, which costs memory.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import has_no_collectives, mean_wall_ns
from zprof.causes.fix import Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_rate
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.step.bandwidth import bandwidth_within_hosts, bus_bandwidths, count_ranks_by_host
from zprof.step.one_rank import (
    MIN_SURE_RATIO,
    StepModel,
    TimedPass,
    is_guess,
    list_timed_passes,
    model_step,
    sum_closing_gathers_ns,
)
from zprof.step.traffic import Messages, StepTraffic, read_step_traffic

_MIN_STEP_RATIO = 0.05
_LOW_RATIO = 0.50
#: Minimum bandwidth of messages within a host; see above.
_WITHIN_HOST_BYTES_PER_S = 20e9
_ASSUMED_TIMES = 2.0
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10
_SHARDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)

FIXES = Fix(
    forms={
        Engine.FSDP2: 'mesh = init_device_mesh("$device", ($hosts, $ranks_per_host), '
        'mesh_dim_names=("replicate", '
        '"shard"))\n'
        "for block in model.layers:\n    fully_shard(block, mesh=mesh)\nfully_shard(model, mesh=mesh)",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "zero_hpz_partition_size": $ranks_per_host}\n'
        "or MiCS: deepspeed.zero.MiCS_Init and mics_shard_size = $ranks_per_host",
    },
    settings={
        (Framework.TRANSFORMERS, Engine.FSDP1): 'TrainingArguments(fsdp="hybrid_shard auto_wrap")',
        (
            Framework.ACCELERATE,
            Engine.FSDP1,
        ): 'FullyShardedDataParallelPlugin(sharding_strategy="HYBRID_SHARD")',
        (Framework.ACCELERATE, Engine.FSDP2): "ParallelismConfig(dp_replicate_size=$hosts, "
        "dp_shard_size=$ranks_per_host)",
        (Framework.LIGHTNING, Engine.FSDP1): 'FSDPStrategy(sharding_strategy="HYBRID_SHARD")',
    },
)


class _Spanning(Struct, frozen=True, kw_only=True):
    """The group that shards over hosts. ``within``: bandwidth within a host, None if not measured."""

    step: StepModel
    messages: Messages
    hosts: int
    per_host: int
    measured_bytes_per_s: float
    within: float | None


def sharding_spans_nodes(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if sharding across hosts sends every gather over a slow link."""
    if has_no_collectives(analysis):
        return untested_gap(
            Cause.SHARDING_SPANS_NODES, "no collective was recorded", "record the time window"
        )
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    sharded = [messages for messages in traffic.both if messages.kind in _SHARDS] if traffic else []
    if traffic is None or not sharded or traffic.exposed_ns <= _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    counted = [
        count_ranks_by_host(analysis, group)
        for group in sorted(sharded[0].rows.texts("group").list_distinct())
    ]
    if any(hosts is None for hosts in counted):
        return untested_gap(
            Cause.SHARDING_SPANS_NODES,
            "the ranks' hosts or the groups' ranks are unknown",
            "record with zprof, or with a torch version whose traces contain hosts and groups",
        )
    layout = _find_layout([hosts for hosts in counted if hosts])
    spanning = _measure_spanning(analysis, baseline, traffic, sharded[0], layout) if layout else None
    return _finding(analysis, spanning) if spanning else None


def _find_layout(counted: list[dict[str, int]]) -> tuple[int, int] | None:
    """Return a group's hosts and ranks per host; None within a host, with one rank per host, or if uneven."""
    layouts = {(len(hosts), count) for hosts in counted for count in hosts.values()}
    hosts, per_host = min(layouts)
    return (hosts, per_host) if len(layouts) == 1 and hosts > 1 and per_host > 1 else None


def _measure_spanning(
    analysis: RunAnalysis,
    baseline: RunAnalysis | None,
    traffic: StepTraffic,
    messages: Messages,
    layout: tuple[int, int],
) -> _Spanning | None:
    each = bus_bandwidths(analysis, messages.rows, messages.kind)
    if not len(each):
        return None
    measured_bytes_per_s = float(np.median(each.floats("bytes_per_s")))
    runs = (analysis, baseline) if baseline else (analysis,)
    within = bandwidth_within_hosts(runs, messages.kind, messages.bytes)
    if measured_bytes_per_s >= (_LOW_RATIO * within if within else _WITHIN_HOST_BYTES_PER_S):
        return None
    return _Spanning(
        step=model_step(analysis, traffic),
        messages=messages,
        hosts=layout[0],
        per_host=layout[1],
        measured_bytes_per_s=measured_bytes_per_s,
        within=within,
    )


def _saving(spanning: _Spanning, *, cpu: bool) -> tuple[float, float]:
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


def _blocked_ns(spanning: _Spanning, rate: float) -> float:
    """Estimate the time that reduce_scatters, and an additional message for each, may block a CPU rank."""
    reduces = [one.reduce_ns for one in _hsdp_passes(spanning, rate) if one.reduce_ns]
    messages = sum(messages.count for messages in spanning.step.traffic.both)
    return sum(reduces) + spanning.step.idle_ns * len(reduces) / messages


def _exposed_with_hsdp(spanning: _Spanning, rate: float) -> tuple[float, float]:
    min_exposed, max_exposed = spanning.step.shown_ns(_hsdp_passes(spanning, rate))
    after = _transfer_scale(spanning, rate) * sum_closing_gathers_ns(spanning.step.traffic, 1)
    return (min_exposed + after, max_exposed + after)


def _transfer_scale(spanning: _Spanning, rate: float) -> float:
    """Return the time of a message within a host relative to now: bytes (h-1)/h instead of (n-1)/n."""
    ranks, size = spanning.per_host, spanning.per_host * spanning.hosts
    return (ranks - 1) / ranks / ((size - 1) / size) * spanning.measured_bytes_per_s / rate


def _hsdp_passes(spanning: _Spanning, rate: float) -> list[TimedPass]:
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


def _finding(analysis: RunAnalysis, spanning: _Spanning) -> Finding | None:
    basis = analysis.time.basis
    wall, saving = mean_wall_ns(analysis), _saving(spanning, cpu=analysis.run.device == "cpu")
    if saving[1] < MIN_SURE_RATIO * wall:
        return None
    kind = spanning.messages.kind.value
    return make_finding(
        analysis,
        Cause.SHARDING_SPANS_NODES,
        sentence=f"parameters are sharded across {spanning.hosts} hosts, so every {kind} crosses the link "
        f"between them: {format_rate(spanning.measured_bytes_per_s)} of bus bandwidth, "
        f"{_describe_expected(spanning)} (exposed {format_ns(spanning.step.exposed_ns)} {basis})",
        evidence=_evidence(spanning),
        saving_ns=saving,
        severity=rate_severity(saving[1], wall),
        confidence=_confidence(spanning, saving, wall),
        fix=choose_fix(analysis, FIXES, {"hosts": spanning.hosts, "ranks_per_host": spanning.per_host}),
        disprove="run the same job on the ranks of one host: if its gathers are as slow there, the link "
        "between hosts is not the cause",
    )


def _describe_expected(spanning: _Spanning) -> str:
    if spanning.within:
        return f"{format_rate(spanning.within)} within a host"
    return f"less than the {format_rate(_WITHIN_HOST_BYTES_PER_S)} available within a host"


def _confidence(spanning: _Spanning, saving: tuple[float, float], wall: float) -> Confidence:
    if is_guess(saving, wall):
        return Confidence.LOW
    sure = spanning.within is not None and len(spanning.messages.rows) >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
    return Confidence.HIGH if sure else Confidence.MEDIUM


def _evidence(spanning: _Spanning) -> list[Fact]:
    facts = [
        make_fact("sharding_hosts", spanning.hosts),
        make_fact("ranks_per_host", spanning.per_host),
        make_fact("bus_bandwidth_median/kind", spanning.measured_bytes_per_s, kind=spanning.messages.kind),
        make_fact("exposed_transfer_per_step/sharding", spanning.step.exposed_ns),
    ]
    if spanning.within:
        facts.append(make_fact("bus_bandwidth_within_host", spanning.within))
    return facts
