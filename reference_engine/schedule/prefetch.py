"""What to gather ahead: the order of the last pass, read with a look-ahead.

The first pass records.  A unit that is needed out of the recorded order ends the look-ahead for the rest of
that pass; what was recorded meanwhile holds for the next.  The order depends on the calls alone, so that
all ranks gather in the same order.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What to do when a unit is needed: gather ``ahead`` too; ``missed`` is what was expected instead."""

    ahead: tuple[str, ...] = ()
    missed: str | None = None


class PrefetchOrder:
    """The order in which one direction (forward or backward) needs its units."""

    def __init__(self, depth: int) -> None:
        """Look ``depth`` units ahead; 0 never does."""
        self._depth = depth
        self._recorded: list[str] = []
        self._seen: list[str] = []
        self._on_course = False

    @property
    def latest(self) -> str | None:
        """The unit that was needed last in this pass."""
        return self._seen[-1] if self._seen else None

    def begin(self) -> None:
        """A pass begins."""
        if self._seen:
            self._recorded, self._seen = self._seen, []
        self._on_course = bool(self._recorded) and self._depth > 0

    def demand(self, unit: str) -> Demand:
        """``unit`` is needed now."""
        position = len(self._seen)
        self._seen.append(unit)
        if not self._on_course:
            return Demand()
        expected = self._recorded[position] if position < len(self._recorded) else "end"
        if expected != unit:
            self._on_course = False
            return Demand(missed=expected)
        return Demand(ahead=tuple(self._recorded[position + 1 : position + 1 + self._depth]))
