"""The moments of a step at which memory may be at its highest, and who holds what then (one rank, bytes).

With U a unit's whole bytes, a what one unit's forward keeps, N ranks, d units ahead, L reductions in flight:

    forward of unit j     gathered (root, j, d ahead), activations of the units until j
    backward of j begins  the same gathered, min(L, reduced) buckets, shards of what is reduced, activations
                          of the units until j
    backward of j ends    with j's whole gradients, without its activations
    optimizer             all gradients

Whole gradients stay in stages 0 and 1.  gloo takes scratch of the size of the message beside a running
reduce_scatter and all_gather, which counts where the run had any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.model.tenants import Tenant
from zprof.planner.whatif.habits import Habits
from zprof.planner.whatif.skeleton import Skeleton

#: Gathers of new parameters that have scratch at a time, after the update.
_GATHERS_AT_ONCE = 2

Held = dict[Tenant, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the walk needs beside the units.

    ``gradients``: of all, as they are kept; ``ranks`` share them.  ``activations``: all that a forward keeps.
    ``scratch``: whether the backend takes any.
    """

    gradients: float
    ranks: int
    activations: float
    scratch: bool


def moments(skeleton: Skeleton, habits: Habits, sizes: Sizes) -> Iterator[tuple[str, Held]]:
    """Each moment by its phase: gradients, communication buffers and activations."""
    walk = _Walk(skeleton, habits, sizes)
    yield from walk.forward()
    yield from walk.backward()
    yield walk.optimizer()


class _Walk:
    def __init__(self, skeleton: Skeleton, habits: Habits, sizes: Sizes) -> None:
        self._units = [unit for unit in skeleton.units if not unit.encloses]
        self._root = sum(unit.gather_bytes for unit in skeleton.units if unit.encloses)
        self._whole = sum(unit.reduce_bytes for unit in skeleton.units) or 1.0
        self._habits = habits
        self._sizes = sizes
        self._several = skeleton.micro_batches > 1

    def forward(self) -> Iterator[tuple[str, Held]]:
        for place in range(len(self._units)):
            ahead = range(place, min(place + 1 + self._habits.prefetch, len(self._units)))
            kept = range(place) if self._habits.keep == "all" else range(0)
            gathered = self._gathered({*ahead, *kept})
            scratch = self._scratch(place) if self._sharded else 0.0
            yield "forward", self._held(self._before_backward(), gathered + scratch, self._saved(place + 1))

    def backward(self) -> Iterator[tuple[str, Held]]:
        count = len(self._units)
        for place in reversed(range(count)):
            reduced = count - 1 - place
            ahead = range(max(0, place - self._habits.prefetch), place + 1)
            kept = range(place) if self._habits.keep == "all" else range(0)
            gathered = self._gathered({*ahead, *kept})
            buckets = self._buckets(place, reduced)
            reducing = self._scratch(place) if reduced and self._habits.stage else 0.0
            gathering = self._scratch(place) if self._gathers_again(place) else 0.0
            done, own = self._reduced(place), self._units[place].gather_bytes
            own = own if self._habits.stage >= 2 else 0.0
            yield (
                "backward",
                self._held(done, gathered + buckets + reducing + gathering, self._saved(place + 1)),
            )
            yield "backward", self._held(done + own, gathered + buckets + reducing, self._saved(place))

    def optimizer(self) -> tuple[str, Held]:
        last = len(self._units) - 1
        scratch = 0.0
        if self._habits.stage in (1, 2) and last >= 0:
            scratch = _GATHERS_AT_ONCE * self._scratch(last)
        whole = self._sizes.gradients / (self._sizes.ranks if self._habits.stage >= 2 else 1)
        return "optimizer", self._held(whole, scratch, 0.0)

    @property
    def _sharded(self) -> bool:
        return self._habits.stage == 3

    def _gathers_again(self, place: int) -> bool:
        kept = self._habits.keep == "all" or (self._habits.keep == "last" and place == len(self._units) - 1)
        return self._sharded and not kept

    def _gathered(self, places: set[int]) -> float:
        if not self._sharded:
            return 0.0
        return self._root + sum(self._units[place].gather_bytes for place in places)

    def _buckets(self, place: int, reduced: int) -> float:
        if self._habits.stage < 2:
            return 0.0
        several = min(self._habits.in_flight if self._habits.overlap_reduce else 0, reduced)
        return sum(self._units[place + 1 + index].reduce_bytes for index in range(several))

    def _scratch(self, place: int) -> float:
        return self._units[place].gather_bytes if self._sizes.scratch else 0.0

    def _before_backward(self) -> float:
        if self._habits.stage < 2:
            return self._sizes.gradients
        return self._sizes.gradients / self._sizes.ranks if self._several else 0.0

    def _reduced(self, place: int) -> float:
        """Gradients that are kept while the unit is in its backward."""
        if self._habits.stage < 2:
            return self._sizes.gradients
        if self._several:
            return self._sizes.gradients / self._sizes.ranks
        share = sum(unit.reduce_bytes for unit in self._units[place + 1 :]) / self._whole
        return share * self._sizes.gradients / self._sizes.ranks

    def _saved(self, units: int) -> float:
        return self._sizes.activations * units / max(1, len(self._units))

    @staticmethod
    def _held(gradients: float, buffers: float, activations: float) -> Held:
        return {
            Tenant.GRADIENTS: gradients,
            Tenant.COMMUNICATION_BUFFERS: buffers,
            Tenant.ACTIVATIONS: activations,
        }
