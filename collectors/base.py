"""What every collector offers to the recorder."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from zprof.model.gaps import Gap

#: Columns of one table of ``zprof.run.schema``.
Columns = Mapping[str, Sequence[Any]]


class Collector(Protocol):
    """Watches one window of steps.  Both ends of the window are step boundaries."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """End, and leave the process as it was before ``start``."""

    def tables(self) -> Mapping[str, Columns]:
        """What was seen, by table name; called once, after ``stop``."""

    def gaps(self) -> Sequence[Gap]:
        """What could not be seen."""
