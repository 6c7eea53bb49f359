"""When everything happened: one row for each instruction, one column for each rank.

Times are nanoseconds since the start of the simulation, on the common clock.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zprof.model.time import LateReason
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Instruction
from zprof.simulator.program.mesh import Groups, Mesh

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One instruction as all ranks carried it out.

    ``host_begin``, ``host_end``: of the host's call.  ``launch``: when the runtime was called.  ``begin``,
    ``end``: on the device (or of the work itself, on a CPU).  ``arrival``: of the last rank of the group.
    ``sequence``: of a collective in its group.  ``did``: ranks that took part (None: all).
    ``lane``: the stream.
    """

    instruction: Instruction
    step: int
    host_begin: Times
    host_end: Times
    launch: Times
    begin: Times
    end: Times
    groups: Groups | None = None
    sequence: int = 0
    arrival: Times | None = None
    late: tuple[tuple[int, LateReason], ...] = ()
    did: frozenset[int] | None = None
    lane: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The whole simulation."""

    plan: Plan
    mesh: Mesh
    lines: list[Line]
    end_ns: Times
