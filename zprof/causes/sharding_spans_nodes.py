"""ZP408: parameters are sharded over hosts, and the link between them is slow.

The group that gathers parameters, or scatters gradients, has several ranks on each of several hosts. More
than 5 % of the step is exposed (docs/thresholds.md), and the group's bus bandwidth is below 50 % of what
groups within a host reach for messages of similar size, in this run or in the baseline. If no such group was
recorded, the limit is 20 GB/s, which a PCIe 4.0 x16 slot provides within a host without NVLink. That is an
assumption, so the confidence is medium.

With the fix, each host of h ranks holds all shards, replicated over r hosts (HSDP): a gather or
reduce_scatter of B bytes moves B (h-1)/h within a host, and an all_reduce of B / h over the replicas follows
on the current link. Each rank then holds 1/h of the states instead of 1/n, which costs memory.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.base.formatting import format_rate
from zprof.causes.cause import Cause, Observation, Proof, Sign, Signal
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step.one_rank import MIN_SURE_RATIO, is_guess
from zprof.step.play import PlayedStep
from zprof.step.spanning_shards import (
    WITHIN_HOST_BYTES_PER_S,
    SlowSharding,
    find_slow_sharding,
    find_spanning_shards,
    measure_sharding_saving_ns,
    shard_within_host,
)
from zprof.step.tasks import Graph

_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10

_FIX = Fix(
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

CAUSE = Cause(
    id="ZP408",
    name="sharding_spans_nodes",
    meaning="Parameters are sharded over hosts, so every gather crosses the slow link between them.",
    # each message also waits for its last rank, so fewer messages wait less
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    produces=(Sign.SLOW_MESSAGES, Sign.GATHERS_OF_BACKWARD, Sign.FIRST_GATHER, Sign.EXPOSED_ROLE),
    proof=Proof.SPEEDS,
    outranks_signs=True,
    sentence="parameters are sharded across {hosts} hosts, so every {kind} crosses the link between them: "
    "{seen:rate} of bus bandwidth, {expected} (exposed {exposed:ns} {per_step})",
    observed="parameters are sharded across {hosts} hosts, so every gather crosses the link between them: "
    "{seen:rate} of bus bandwidth instead of at least the {within:rate} available within a host. "
    "With shards within a host {step_is} shorter",
    evidence={
        "sharding_hosts": ("hosts of the sharding group", Unit.COUNT),
        "ranks_per_host": ("ranks per host", Unit.COUNT),
        "bus_bandwidth_median": ("{kind}bus bandwidth, median", Unit.BYTES_PER_S),
        "exposed_transfer_per_step": ("exposed transfer of sharding {per_step}", Unit.NS),
        "bus_bandwidth_within_host": ("bus bandwidth within a host", Unit.BYTES_PER_S),
    },
    fix=_FIX,
    disprove="run the same job on the ranks of one host: if its gathers are as slow there, the link "
    "between hosts is not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if sharding across hosts sends every gather over a slow link."""
    found = find_slow_sharding(analysis, baseline)
    if not isinstance(found, SlowSharding):
        return found
    wall_ns = mean_wall_ns(analysis)
    saving_ns = measure_sharding_saving_ns(found, cpu=analysis.run.device == "cpu")
    if saving_ns[1] < MIN_SURE_RATIO * wall_ns:
        return None
    kind, within = found.messages.kind, found.within
    is_sure = within is not None and len(found.messages.rows) >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
    sure = Confidence.HIGH if is_sure else Confidence.MEDIUM
    expected = f"less than the {format_rate(WITHIN_HOST_BYTES_PER_S)} available within a host"
    return Signal(
        confidence=Confidence.LOW if is_guess(saving_ns, wall_ns) else sure,
        words={
            "hosts": found.hosts,
            "kind": kind.value,
            "seen": found.measured_bytes_per_s,
            "expected": f"{format_rate(within)} within a host" if within else expected,
            "exposed": found.step.exposed_ns,
        },
        facts=[
            make_fact("sharding_hosts", found.hosts),
            make_fact("ranks_per_host", found.per_host),
            make_fact("bus_bandwidth_median", found.measured_bytes_per_s, kind=f"{kind} "),
            make_fact("exposed_transfer_per_step", found.step.exposed_ns),
            *([make_fact("bus_bandwidth_within_host", within)] if within else ()),
        ],
        saving_ns=saving_ns,
        numbers={"hosts": found.hosts, "ranks_per_host": found.per_host},
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the step with shards within a host; the bandwidth within a host may be an assumption."""
    found = find_spanning_shards(step.analysis)
    if found is None or step.graph is None:
        return None
    return Observation(
        changed=shard_within_host(step.analysis, step.graph, found),
        words={"hosts": found.hosts, "seen": found.seen, "within": found.within[0]},
        facts=[
            make_fact("sharding_hosts", found.hosts),
            make_fact("ranks_per_host", found.per_host),
            make_fact("bus_bandwidth_median", found.seen, kind=""),
        ],
        max_confidence=Confidence.HIGH if found.measured else Confidence.MEDIUM,
        numbers={"hosts": found.hosts, "ranks_per_host": found.per_host},
    )


@CAUSE.edit
def shard_within_hosts(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with shards within a host, and an all_reduce between hosts after each reduction."""
    found = find_spanning_shards(analysis)
    return shard_within_host(analysis, graph, found) if found else []
