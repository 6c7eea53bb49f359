"""Write a stall into a run, also of a rank that has not recorded anything yet."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from zprof.collectors.record.base import Columns
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.version import __version__


class StallMark:
    """Kinds of the marks of a watch."""

    STUCK, RESUMED = "stuck", "resumed"


class StallWriter(Protocol):
    """Writes stalls next to what else a rank records, from any thread."""

    def save_stall(
        self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]
    ) -> bool:
        """Add a mark, if ``kind`` names one, and replace the tables.

        Return True if the run on disk has them.
        """


class BareRank:
    """The folder of a rank that has recorded no step."""

    def __init__(self, run: Path, rank: int, manifest: RunManifest) -> None:
        from zprof.collectors.record.logs import MarkLog
        from zprof.run.writer import RankWriter

        self._writer, self._marks = RankWriter(run, rank, manifest), MarkLog()

    def save_stall(
        self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]
    ) -> bool:
        """Write the stall; errors are raised."""
        if kind:
            self._marks.add(kind, stall_ns)
        for name, columns in {**tables, "mark": self._marks.columns()}.items():
            self._writer.write_table(name, columns)
        self._writer.publish(gaps)
        return True


def make_bare_manifest(world_size: int, backend: str, run_id: str, device: str = "") -> RunManifest:
    """Return the manifest of a run of which no step was recorded."""
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=world_size,
        backend=backend,
        device=device,
        training=TrainingFacts(),
        run_id=run_id,
        folder=os.getcwd(),
    )
