"""The events of one rank as text: what lies outside its window, or is dropped, does not get in."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zprof.simulator.plan import Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """When a rank records, on its own clock."""

    opens_ns: int
    closes_ns: int


class Sheet:
    """Collects texts of events."""

    def __init__(
        self, opening: Opening, base_ns: int, stamps: Stamps, drop: tuple[float, np.random.Generator]
    ) -> None:
        self.opening = opening
        self.texts: list[str] = []
        self.dropped = 0
        self._base_ns = base_ns
        self._whole = stamps is Stamps.WHOLE_MICROSECONDS
        self._share, self._random = drop

    def complete(self, template: str, begin_ns: int, end_ns: int, *values: object) -> bool:
        """Add a complete event; whether it got in."""
        if begin_ns < self.opening.opens_ns or end_ns > self.opening.closes_ns:
            return False
        if self._share and self._random.random() < self._share:
            self.dropped += 1
            return False
        self.texts.append(template % (self.stamp(begin_ns), self.length(begin_ns, end_ns), *values))
        return True

    def flow(self, template: str, number: int, time_ns: int) -> None:
        """Add an end of an arrow."""
        if self.opening.opens_ns <= time_ns <= self.opening.closes_ns:
            self.texts.append(template % (number, self.stamp(time_ns)))

    def always(self, texts: Iterable[str]) -> None:
        """Add what belongs to the file, not to its window."""
        self.texts.extend(texts)

    def stamp(self, time_ns: int) -> str:
        """A time as the file has it."""
        if self._whole:
            return str(time_ns // 1000)
        relative = time_ns - self._base_ns
        return f"{relative // 1000}.{relative % 1000:03d}"

    def length(self, begin_ns: int, end_ns: int) -> str:
        """A duration as the file has it."""
        if self._whole:
            return str(end_ns // 1000 - begin_ns // 1000)
        length = end_ns - begin_ns
        return f"{length // 1000}.{length % 1000:03d}"
