"""What each unit takes, apart from what runs beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Of each of ``count`` units alike, in whole nanoseconds.

    ``backward_ns`` holds the recomputation.  ``reduce_ns``: a reduce-scatter, or an all-reduce.  ``model_*``:
    collectives of the model-parallel group in the pass.  ``copy_ns``: of its checkpoint, out or in.
    """

    count: int = 1
    forward_ns: int
    backward_ns: int
    gather_ns: int = 0
    reduce_ns: int = 0
    model_forward_ns: int = 0
    model_backward_ns: int = 0
    copy_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTimes:
    """Of all units in the order of the forward; ``root`` encloses the others, and is one."""

    units: tuple[UnitTimes, ...]
    root: UnitTimes | None = None

    @property
    def computed(self) -> tuple[UnitTimes, ...]:
        """In the order in which forwards end."""
        return self.units if self.root is None else (*self.units, self.root)


def with_next(units: Sequence[UnitTimes]) -> Iterator[tuple[UnitTimes, UnitTimes | None]]:
    """Each run of units, and the one after it."""
    yield from pairwise((*units, None))
