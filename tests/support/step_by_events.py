"""A schedule by events: one stream of compute, one link that serves in the order of launching.

Written apart from the product, and simple: each piece of work begins when its place is free and what it waits
for is done.  An engine of stage 3 with one unit prefetched: before a unit it launches the next one's gather,
after a unit's backward its reduction.
"""

from dataclasses import dataclass, field


@dataclass
class Machine:
    compute: int = 0
    link: int = 0
    done: dict[str, int] = field(default_factory=dict)

    def on_link(self, name: str, length: int, launched: int) -> None:
        if name not in self.done:
            self.link = max(self.link, launched) + length
            self.done[name] = self.link

    def computed(self, length: int, *needs: str) -> int:
        """Its begin."""
        begin = max([self.compute, *(self.done[name] for name in needs)])
        self.compute = begin + length
        return begin

    @property
    def end(self) -> int:
        return max(self.compute, self.link)


@dataclass(frozen=True)
class Unit:
    forward: int
    backward: int
    gather: int
    reduce: int


def sharded(units: list[Unit], root: Unit | None, keep_last: bool) -> int:
    """Stage 3: forward and backward of one micro-batch, with one unit prefetched."""
    machine = Machine()
    if root is not None:
        machine.on_link("root", root.gather, 0)
    for at, unit in enumerate(units):
        needed = f"forward.{at}"
        machine.on_link(needed, unit.gather, machine.compute)
        before = max(machine.compute, machine.done[needed])
        if at + 1 < len(units):
            machine.on_link(f"forward.{at + 1}", units[at + 1].gather, before)
        machine.computed(unit.forward, needed)
    if root is not None:
        machine.computed(root.forward)
    return _backward(machine, units, root, keep_last)


def _backward(machine: Machine, units: list[Unit], root: Unit | None, keep_last: bool) -> int:
    order = list(reversed(range(len(units))))
    if keep_last:
        machine.done[f"backward.{order[0]}"] = machine.compute
    if root is not None:
        machine.on_link("root again", root.gather, machine.compute)
        begin = max(machine.compute, machine.done["root again"])
        machine.on_link(f"backward.{order[0]}", units[order[0]].gather, begin)
        machine.computed(root.backward, "root again")
    for place, at in enumerate(order):
        needed = f"backward.{at}"
        machine.on_link(needed, units[at].gather, machine.compute)
        begin = max(machine.compute, machine.done[needed])
        if place + 1 < len(order):
            following = order[place + 1]
            machine.on_link(f"backward.{following}", units[following].gather, begin)
        machine.computed(units[at].backward, needed)
        machine.on_link(f"reduce.{at}", units[at].reduce, machine.compute)
    if root is not None:
        machine.on_link("reduce root", root.reduce, machine.compute)
    return machine.end


def reduced(units: list[Unit], root: Unit | None) -> int:
    """Stages 0 to 2: a backward; one reduction may be under way while the next unit computes."""
    machine = Machine()
    if root is not None:
        machine.computed(root.backward)
    for at in reversed(range(len(units))):
        machine.computed(units[at].backward)
        if f"reduce.{at + 1}" in machine.done:
            machine.compute = max(machine.compute, machine.done[f"reduce.{at + 1}"])
        machine.on_link(f"reduce.{at}", units[at].reduce, machine.compute)
    if root is not None:
        machine.on_link("reduce root", root.reduce, machine.compute)
    return machine.end


def refreshed(units: list[Unit], root: Unit | None) -> int:
    """Stages 1 and 2: a forward whose parameters are gathered from its start on, in order."""
    machine = Machine()
    if root is not None:
        machine.on_link("root", root.gather, 0)
        machine.computed(0, "root")
    for at, unit in enumerate(units):
        machine.on_link(f"gather.{at}", unit.gather, 0)
        machine.computed(unit.forward, f"gather.{at}")
    if root is not None:
        machine.computed(root.forward)
    return machine.compute
