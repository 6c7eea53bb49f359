"""The log of points in time: steps, windows, pings (table ``mark``)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class MarkLog:
    """Columns of the ``mark`` table, appended to while the program runs."""

    time_ns: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)

    def add(self, kind: str, number: int, name: str = "", at_ns: int | None = None) -> int:
        """Add a mark, by default now; returns its time."""
        at_ns = time.time_ns() if at_ns is None else at_ns
        self.time_ns.append(at_ns)
        self.kind.append(kind)
        self.number.append(number)
        self.name.append(name)
        return at_ns

    def extend(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Take over the marks that a collector made."""
        self.time_ns.extend(columns["time_ns"])
        self.kind.extend(columns["kind"])
        self.number.extend(columns["number"])
        self.name.extend(columns["name"])

    def columns(self) -> dict[str, list[int] | list[str]]:
        """The table as columns."""
        return {"time_ns": self.time_ns, "kind": self.kind, "number": self.number, "name": self.name}
