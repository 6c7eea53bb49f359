"""ZP208 init_spike: the program's highest memory peak occurs before its first step.

Building an unsharded model on every rank, moving it to the GPU on rank 0, or loading a full checkpoint can
take more memory than any step: the run fails there, or needs a larger device than its steps do. Reported if
the peak before the first step is at least 10 % above the steps' peak of the same rank and device (high
severity starts at a tenth).

If that phase was not recorded, the allocator's maximum for the process only shows that the peak outside of
the recorded steps was higher, without a reason: low confidence.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    limit_confidence,
    make_memory_finding,
)
from zprof.rules.rule import untested_gap

_ABOVE_RATIO = 0.10
_WORTH_BYTES = 1 << 20

_CHECKPOINT_ON_CPU = "map_location='cpu' for checkpoints, and load into the existing model"
_EFFICIENT_LOADING = 'TrainingArguments(fsdp_config={"cpu_ram_efficient_loading": True})'
_FIXES = Fix(
    forms={
        Engine.FSDP2: 'with torch.device("meta"):\n'
        "    model = Model()\n"
        "for block in model.layers:\n"
        "    fully_shard(block)\n"
        'fully_shard(model); model.to_empty(device="$device"); then init or '
        "torch.distributed.checkpoint.load",
        Engine.FSDP1: 'with torch.device("meta"):\n'
        "    model = Model()\n"
        "FullyShardedDataParallel(model, param_init_fn=..., sync_module_states=True)",
        Engine.DEEPSPEED: "with deepspeed.zero.Init(config_dict_or_path=config):\n    model = Model()",
        Engine.DDP: _CHECKPOINT_ON_CPU,
        Engine.ZERO1: _CHECKPOINT_ON_CPU,
        Engine.PYTORCH: _CHECKPOINT_ON_CPU,
    },
    settings={
        (
            Framework.TRANSFORMERS,
            Engine.DEEPSPEED,
        ): "HfDeepSpeedConfig(config)  # kept alive, before from_pretrained",
        (Framework.TRANSFORMERS, Engine.FSDP2): _EFFICIENT_LOADING,
        (Framework.TRANSFORMERS, Engine.FSDP1): _EFFICIENT_LOADING,
        (Framework.ACCELERATE, Engine.FSDP2): "FullyShardedDataParallelPlugin(fsdp_version=2, "
        "cpu_ram_efficient_loading=True)",
        (
            Framework.ACCELERATE,
            Engine.FSDP1,
        ): "FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=True,\n"
        "                               sync_module_states=True)",
        (Framework.LIGHTNING, ANY): "create the model in configure_model(), not in __init__",
    },
)


class _Spike(Struct, frozen=True, kw_only=True):
    rank: int
    before_bytes: int
    steady_bytes: int
    ranks: int
    watched: bool
    tenant: str = ""


def init_spike(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if more was live before the first step than in any step."""
    big = find_largest_rank(analysis)
    if big is None or analysis.run.source == "snapshot":
        return None
    spikes = _spikes(analysis) if analysis.memory.init else _from_counters(analysis)
    if spikes:
        return _finding(analysis, big, max(spikes, key=lambda spike: spike.before_bytes))
    if analysis.memory.init or analysis.training.engine == "reference":
        return None
    return untested_gap(
        Cause.INIT_SPIKE,
        "the memory before the first step was not recorded",
        "start the program with zprof in full mode: zprof record -o RUN -- python train.py",
    )


def _spikes(analysis: RunAnalysis) -> list[_Spike]:
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in analysis.memory.per_rank}
    above = [
        entry
        for entry in analysis.memory.init
        if _is_above(entry.peak_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [
        _Spike(
            rank=entry.rank,
            before_bytes=entry.peak_bytes,
            steady_bytes=steady[entry.rank, entry.device],
            ranks=len(above),
            watched=True,
            tenant=max(DISPLAY_ORDER, key=lambda tenant: entry.tenants.get(tenant, 0)).value,
        )
        for entry in above
    ]


def _from_counters(analysis: RunAnalysis) -> list[_Spike]:
    """Return spikes by the allocator's counters, without ranks whose recorded peak is a lower bound.

    For these the maximum may belong to the steps.
    """
    known = [entry for entry in analysis.memory.per_rank if not entry.lower_bound]
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in known}
    above = [
        (entry.rank, entry.peak_allocated_bytes, steady[entry.rank, entry.device])
        for entry in analysis.memory.counters
        if entry.peak_allocated_bytes
        and _is_above(entry.peak_allocated_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [
        _Spike(rank=rank, before_bytes=before, steady_bytes=after, ranks=len(above), watched=False)
        for rank, before, after in above
    ]


def _is_above(before_bytes: int, steady_bytes: int) -> bool:
    more = before_bytes - steady_bytes
    return steady_bytes > 0 and more >= max(_WORTH_BYTES, _ABOVE_RATIO * steady_bytes)


def _finding(analysis: RunAnalysis, big: LargestRank, spike: _Spike) -> Finding:
    loaded = len(analysis.memory.per_rank)
    ranks_text = f"rank {spike.rank}" + (f" ({spike.ranks} of {loaded} ranks)" if loaded > 1 else "")
    phase = "before its first step" if spike.watched else "outside of the recorded steps"
    tenant_note = f", mostly {spike.tenant.replace('_', ' ')}" if spike.tenant else ""
    # The run needs what its largest rank needs, before the first step or in it.
    freed = max(0, spike.before_bytes - big.memory.peak_bytes)
    return make_memory_finding(
        analysis,
        Cause.INIT_SPIKE,
        big,
        sentence=f"{ranks_text} holds {format_bytes(spike.before_bytes)} {phase} but at most "
        f"{format_bytes(spike.steady_bytes)} in its steps{tenant_note}",
        evidence=[
            make_fact("peak_before_steps", spike.before_bytes, rank=spike.rank, phase=phase),
            make_fact("peak_of_steps", spike.steady_bytes, rank=spike.rank),
        ],
        saving_bytes=(freed / 2, freed),
        confidence=limit_confidence(Confidence.HIGH if spike.watched else Confidence.LOW, big, 0.0),
        fix=choose_fix(analysis, _FIXES, {"device": analysis.run.device.split()[0]})
        + ("\nonly some ranks: init or load on one, then broadcast shards" if spike.ranks < loaded else ""),
        disprove="record the start again with the model on the meta device: if it remains, the spike is not "
        "caused by the model",
    )
