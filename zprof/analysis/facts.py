"""Describe what was recorded, from the manifests; infer the engine from names if it was not declared."""

import re
from collections.abc import Mapping

from zprof.base.formatting import escape_surrogates
from zprof.model.report import RunFacts
from zprof.model.training import Engine, EngineSetting, SettingEffect, TrainingFacts
from zprof.run.reader import Run

#: Environment variables that slow a program, and the values that do so: each collective is first checked on
#: all ranks, or the host waits for each kernel or collective.
_SLOWING_VARIABLES: Mapping[str, frozenset[str]] = {
    "CUDA_LAUNCH_BLOCKING": frozenset({"1"}),
    "TORCH_DISTRIBUTED_DEBUG": frozenset({"DETAIL"}),
    "NCCL_BLOCKING_WAIT": frozenset({"1"}),
    "TORCH_NCCL_BLOCKING_WAIT": frozenset({"1"}),
}
#: Names that only one engine writes, most specific engine first: an engine may use parts of a later one.
_NAMES = (
    (
        Engine.DEEPSPEED,
        re.compile(r"(?i)deepspeed|LinearFunctionForZeroStage3|(Pre|Post)BackwardFunction(ForModule|Module)"),
    ),
    (Engine.FSDP2, re.compile(r"^(FSDP|fsdp)::\w+")),
    (Engine.FSDP1, re.compile(r"^FullyShardedDataParallel\b")),
    (Engine.ZERO1, re.compile(r"\bZeroRedundancyOptimizer\b")),
    (
        Engine.DDP,
        re.compile(r"^DistributedDataParallel\b|torch::distributed::reducer::|^torch\.distributed\.ddp"),
    ),
)
_MAX_NAME = 200


def describe_run(run: Run) -> RunFacts:
    """Return a run's facts without reading any table."""
    manifest, ranks = run.manifest, run.rank_manifests.values()
    slowing = [
        EngineSetting(name=name, value=manifest.environment[name], effect=SettingEffect.SYNCHRONISES)
        for name, values in _SLOWING_VARIABLES.items()
        if manifest.environment.get(name, "").upper() in values
    ]
    return RunFacts(
        name=escape_surrogates(run.path.resolve().name).removesuffix(".zprof"),
        source=manifest.source,
        world_size=manifest.world_size,
        ranks_loaded=run.ranks,
        steps=tuple(sorted({step for rank in ranks for step in rank.time_steps})),
        memory_steps=tuple(sorted({step for rank in ranks for step in rank.memory_steps})),
        device=manifest.device,
        backend=manifest.backend,
        engine=manifest.training.engine,
        stage=manifest.training.stage,
        modelled=manifest.training.modelled,
        settings=(*manifest.training.settings, *slowing),
    )


def read_declared_engine(facts: TrainingFacts) -> Engine | None:
    """Return the engine declared in the facts, None if it is not a known one."""
    engine = facts.engine.lower()
    if engine in (Engine.DDP, Engine.PYTORCH) and facts.stage == 1:
        return Engine.ZERO1
    return Engine(engine) if engine in set(Engine) else None


def find_engine(run: Run) -> Engine | None:
    """Return the declared engine, else the engine found in the first timed rank's events, else None."""
    declared = read_declared_engine(run.manifest.training)
    rank = next((each for each in run.ranks if run.has_table(each, "events")), None)
    if declared is not None or rank is None:
        return declared
    from zprof.analysis.time.events import list_names  # what only reads manifests needs no numpy

    events = run.table(rank, "events", ("name",))
    names = [name[:_MAX_NAME] for name in list_names(events)]
    for engine, pattern in _NAMES:
        if any(pattern.search(name) for name in names):
            return engine
    return None
