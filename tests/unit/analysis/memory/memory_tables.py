"""Hand-made ``alloc``, ``role`` and ``mark`` tables: times in microseconds after the window's begin."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from zprof.analysis.memory.live_bytes import RankLives, read_rank_lives
from zprof.analysis.memory.tables import Claims, read_claims
from zprof.analysis.memory.timeline import read_timeline

US = 1_000
ORIGIN = 1_700_000_000_000_000_000
_NULLABLE = ["freed_ns", "thread"]


def at(time_us: float) -> int:
    return ORIGIN + round(time_us * US)


@dataclass
class Tables:
    """Rows as they are added; the window is [0, 1000] us."""

    alloc: list[dict[str, Any]] = field(default_factory=list)
    role: list[dict[str, Any]] = field(default_factory=list)
    mark: list[dict[str, Any]] = field(default_factory=list)

    def storage(
        self,
        generation: int,
        address: int,
        size: int,
        begin_us: float,
        end_us: float | None = None,
        *,
        operator: str | None = "aten.add.Tensor",
        phase: str = "forward",
        before: bool = False,
        source: str = "storage",
        module: str | None = None,
    ) -> None:
        row = self._row(source, address, size, begin_us, end_us, operator)
        row |= {"generation": generation, "phase": phase, "before_window": before, "module": module}
        self.alloc.append(row)

    def block(
        self,
        address: int,
        size: int,
        begin_us: float,
        end_us: float | None,
        operator: str | None = "aten::add",
    ) -> None:
        self.alloc.append(self._row("profiler", address, size, begin_us, end_us, operator))

    def claim(
        self, generation: int, time_us: float, tenant: str, sub: str = "", *, backdated: bool = True,
        gained: bool = True,
    ) -> None:  # fmt: skip
        self.role.append(
            {
                "generation": generation,
                "time_ns": at(time_us),
                "tenant": tenant,
                "sub": sub,
                "gained": gained,
                "backdated": backdated,
                "via": "test",
            }
        )

    def phase(self, time_us: float, name: str) -> None:
        self.mark.append({"time_ns": at(time_us), "kind": "phase", "number": 0, "name": name})

    def lives(self, end_us: float = 1000) -> RankLives:
        timeline = read_timeline(self._marks(end_us))
        assert timeline is not None
        return read_rank_lives(self._alloc(), self._role(), timeline, "cpu")

    def claims(self) -> Claims:
        return read_claims(self._role())

    def _alloc(self) -> pd.DataFrame:
        frame = pd.DataFrame(self.alloc)
        for column in _NULLABLE:  # by way of floats, times would lose their last digits
            frame[column] = pd.array([row[column] for row in self.alloc], dtype="Int64")
        return frame

    def _role(self) -> pd.DataFrame:
        names = ["generation", "time_ns", "tenant", "sub", "gained", "backdated", "via"]
        frame = pd.DataFrame(self.role, columns=names)
        return frame.astype({"gained": bool, "backdated": bool})

    def _marks(self, end_us: float) -> pd.DataFrame:
        frame = [
            {"time_ns": at(0), "kind": "window_begin", "number": 0, "name": "memory"},
            {"time_ns": at(0), "kind": "step_begin", "number": 4, "name": ""},
            {"time_ns": at(end_us), "kind": "step_end", "number": 4, "name": ""},
            {"time_ns": at(end_us), "kind": "window_end", "number": 5, "name": "memory"},
            *self.mark,
        ]
        return pd.DataFrame(frame)

    def _row(
        self,
        source: str,
        address: int,
        size: int,
        begin_us: float,
        end_us: float | None,
        operator: str | None,
    ) -> dict[str, Any]:
        return {
            "generation": -1,
            "source": source,
            "device": "cpu",
            "address": address,
            "bytes": size,
            "allocated_ns": at(begin_us),
            "freed_ns": None if end_us is None else at(end_us),
            "before_window": False,
            "operator": operator,
            "phase": "other",
            "module": None,
            "thread": 1,
        }
