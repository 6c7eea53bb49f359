"""ZP208: the program's highest memory peak occurs before its first step.

Building an unsharded model on every rank, moving it to the GPU on rank 0, or loading a full checkpoint can
take more memory than any step: the run fails there, or needs a larger device than its steps do. Reported if
the peak before the first step is at least 10 % above the steps' peak of the same rank and device (high
severity starts at a tenth).

If that phase was not recorded, the allocator's maximum for the process only shows that the peak outside of
the recorded steps was higher, but not why: low confidence.
"""

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, make_untested
from zprof.analysis.memory.largest_rank import find_early_peaks, find_largest_rank, limit_confidence
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework

_CHECKPOINT_ON_CPU = "map_location='cpu' for checkpoints, and load into the existing model"
_EFFICIENT_LOADING = 'TrainingArguments(fsdp_config={"cpu_ram_efficient_loading": True})'
_FIX = Fix(
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

CAUSE = Cause(
    id="ZP208",
    name="init_spike",
    meaning="The program's highest point lies before its first step.",
    needs=(Need.MEMORY,),
    sentence="rank {first}{of_ranks} holds {before:bytes} {phase} but at most {steady:bytes} in its "
    "steps{tenant}",
    evidence={
        "peak_before_steps": ("highest {phase}", Unit.BYTES),
        "peak_of_steps": ("highest in a recorded step", Unit.BYTES),
    },
    fix=_FIX,
    disprove="record the start again with the model on the meta device: if it remains, the spike is not "
    "caused by the model",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if more was live before the first step than in any step."""
    largest = find_largest_rank(analysis)
    if largest is None or analysis.run.source == "snapshot":
        return None
    is_recorded = bool(analysis.memory.init)
    spikes = find_early_peaks(analysis)
    if not spikes:
        if is_recorded or analysis.training.engine == "reference":
            return None
        return make_untested("init_not_recorded")
    spike = max(spikes, key=lambda spike: spike.before_bytes)
    loaded = len(analysis.memory.per_rank)
    phase = "before its first step" if is_recorded else "outside of the recorded steps"
    # The run needs what its largest rank needs, before the first step or in it.
    freed = max(0, spike.before_bytes - largest.memory.peak_bytes)
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.HIGH if is_recorded else Confidence.LOW, largest, 0.0),
        facts=[
            make_fact("peak_before_steps", spike.before_bytes, rank=spike.rank, phase=phase),
            make_fact("peak_of_steps", spike.steady_bytes, rank=spike.rank),
        ],
        saving_bytes=(freed / 2, freed),
        words={
            "first": spike.rank,
            "of_ranks": f" ({len(spikes)} of {loaded} ranks)" if loaded > 1 else "",
            "before": spike.before_bytes,
            "phase": phase,
            "steady": spike.steady_bytes,
            "tenant": f", mostly {spike.tenant.replace('_', ' ')}" if spike.tenant else "",
        },
        fix=choose_fix(analysis, _FIX, {"device": analysis.run.device.split()[0]})
        + ("\nonly some ranks: init or load on one, then broadcast shards" if len(spikes) < loaded else ""),
    )
