"""Describe what was recorded, from the manifests alone."""

from collections.abc import Iterator, Mapping

from zprof.model.formatting import escape_surrogates
from zprof.model.report import RunFacts
from zprof.model.training import EngineSetting, SettingEffect
from zprof.run.reader import Run

#: Environment variables that slow a program, and the values that do: each collective is checked on all ranks
#: first, or the host waits for each kernel or collective.
_SLOWING_VARIABLES: Mapping[str, frozenset[str]] = {
    "CUDA_LAUNCH_BLOCKING": frozenset({"1"}),
    "TORCH_DISTRIBUTED_DEBUG": frozenset({"DETAIL"}),
    "NCCL_BLOCKING_WAIT": frozenset({"1"}),
    "TORCH_NCCL_BLOCKING_WAIT": frozenset({"1"}),
}


def describe_run(run: Run) -> RunFacts:
    """Return the facts of a run without reading any table."""
    manifest, ranks = run.manifest, run.rank_manifests.values()
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
        settings=(*manifest.training.settings, *_list_slowing_variables(manifest.environment)),
    )


def _list_slowing_variables(environment: Mapping[str, str]) -> Iterator[EngineSetting]:
    for name, values in _SLOWING_VARIABLES.items():
        value = environment.get(name, "")
        if value.upper() in values:
            yield EngineSetting(name=name, value=value, effect=SettingEffect.SYNCHRONISES)
