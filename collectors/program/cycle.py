"""Which optimizer ends a step, learned from the order in which a program's optimizers step.

The one that stepped for the first time last closes the cycle: A for ``A A A`` (also where each A comes after
several backward passes), B for ``A B A B``, G for ``D D D G D D D G``.  A program that trains in the backward
pass, one optimizer a parameter, is one optimizer here: the backward.
"""

from collections.abc import Hashable

#: Steps of other optimizers after which one that no longer steps is given up as the closing one.
GIVE_UP_AFTER = 16


class StepCycle:
    """Told of each optimizer step that is over, in order."""

    def __init__(self) -> None:
        self._order: list[Hashable] = []
        self._others = 0
        self._settled = False
        self.closings = 0

    def ended(self, optimizer: Hashable) -> bool:
        """An optimizer step is over; whether with it a step of the program is."""
        if optimizer not in self._order and not self._settled:
            self._order.append(optimizer)
            self.closings = 0
        elif optimizer != self._order[-1]:
            self._others += 1
            if self._others <= GIVE_UP_AFTER:
                return False
            self._give_up(optimizer)
        self.closings += 1
        self._others = 0
        return True

    @property
    def repeated(self) -> bool:
        """Whether the cycle was seen twice."""
        return self.closings > 1

    def settle(self) -> None:
        """From here on an optimizer that was never seen no longer changes what a step is."""
        self._settled = True

    def _give_up(self, optimizer: Hashable) -> None:
        """The closing optimizer has stopped (it fitted something at the start): this one closes instead."""
        self._order.pop()
        if optimizer in self._order:
            self._order.remove(optimizer)
        self._order.append(optimizer)
