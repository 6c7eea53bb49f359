"""A path that the user gave, as a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from zprof.model.errors import MissingData

if TYPE_CHECKING:
    from zprof.run.reader import Run


def open_run(path: Path) -> "Run":
    """The run at ``path``, with at least one rank that can be read.

    Raises:
        BadInput: there is no run, or it is damaged.
        MissingData: no rank finished its recording.
    """
    from zprof.run.reader import load

    run = load(path)
    if not run.ranks:
        reasons = "; ".join(f"rank {gap.rank}: {gap.reason}" for gap in run.gaps()[:4])
        raise MissingData(f"{path}: no rank finished its recording ({reasons})", hint="record the run again")
    return run
