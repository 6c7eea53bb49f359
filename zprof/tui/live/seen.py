"""What the live view knows at one look: all that its pages are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zprof.run.live import LiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that the view was started beside.  ``code``: its exit code, None while it runs.

    ``ours``: false where the view only looks at somebody else's run.
    """

    ours: bool = False
    code: int | None = None

    @property
    def runs(self) -> bool:
        """Whether there is a job of this view's, and it goes on."""
        return self.ours and self.code is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The report on what was written so far, as JSON; empty until a window is over.

    ``busy``: it is being measured anew.  ``problem``: why there is none.
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    busy: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The run, what was measured of it, its job, and the last lines that the job wrote."""

    state: LiveState
    measured: Measured = field(default_factory=Measured)
    job: Job = field(default_factory=Job)
    log: tuple[str, ...] = ()
