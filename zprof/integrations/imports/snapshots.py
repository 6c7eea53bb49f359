"""CUDA memory snapshots, one a rank, as a run."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zprof.collectors.snapshot.parent import read_snapshot
from zprof.integrations.imports.names import RankedFile, ranked, refuse_twice
from zprof.integrations.imports.options import Written
from zprof.integrations.imports.watch import ImportWatch
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.writer import RankWriter
from zprof.version import __version__


def write_snapshots(run: Path, paths: Sequence[Path], notes: Sequence[str], watch: ImportWatch) -> Written:
    """Write the snapshots at ``paths`` as the run ``run``: which rank each is, and what is worth saying.

    Raises:
        BadInput: a file cannot be used, or two are of one rank.
        OSError: the run cannot be written.
    """
    ranking = ranked(paths)
    refuse_twice(ranking.files)
    found = (*notes, *ranking.notes)
    manifest = _manifest(ranking.files, found)
    sizes = [file.path.stat().st_size for file in ranking.files]
    watch.begin(len(sizes), sum(sizes))
    for position, file in enumerate(ranking.files):
        _write_rank(run, manifest, file)
        watch.bytes_read(sum(sizes[: position + 1]))
        watch.rank_done()
    return Written(files=ranking.files, notes=found)


def _manifest(files: Sequence[RankedFile], notes: Sequence[str]) -> RunManifest:
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(file.rank for file in files) + 1,
        backend="unknown",
        device="cuda",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="snapshot",
        gaps=tuple(_noted(note) for note in notes),
    )


def _write_rank(run: Path, manifest: RunManifest, file: RankedFile) -> None:
    with read_snapshot(file.path) as snapshot:
        writer = RankWriter(run, file.rank, manifest)
        for name, table in snapshot.tables.items():
            writer.write_table(name, table)
        gaps = [replace(gap, rank=file.rank) for gap in snapshot.gaps]
    writer.finish(memory_steps=(), time_steps=(), gaps=gaps, status="complete")


def _noted(note: str) -> Gap:
    return Gap(what="ranks of the snapshots", reason=note, remedy="put rank0, rank1, ... into the names")
