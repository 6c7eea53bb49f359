"""Describe what was recorded, from the manifests alone."""

from zprof.model.report import RunFacts
from zprof.run.reader import Run


def describe_run(run: Run) -> RunFacts:
    """Return the facts of a run without reading any table."""
    manifest, ranks = run.manifest, run.rank_manifests.values()
    return RunFacts(
        name=run.path.resolve().name.removesuffix(".zprof"),
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
    )
