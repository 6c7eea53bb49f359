"""Hand-made ``alloc``, ``role`` and ``mark`` tables: times in microseconds after the window's begin."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.support.run_tables import table_of_rows
from zprof.analysis.columns import Columns
from zprof.analysis.memory.live_bytes import RankLives, read_rank_lives
from zprof.analysis.memory.tables import read_timeline
from zprof.model.tenants import PRECEDENCE

US = 1_000
ORIGIN = 1_700_000_000_000_000_000
ROLE_COLUMNS = ["generation", "time_ns", "tenant", "sub", "gained", "backdated", "via"]


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
        before: bool = False,
        **more: Any,
    ) -> None:
        """``more``: phase, source, module."""
        row = {"source": "storage", "phase": "forward", "generation": generation, "before_window": before}
        self._alloc_row(row | more, address, size, begin_us, end_us, operator)

    def block(
        self,
        address: int,
        size: int,
        begin_us: float,
        end_us: float | None,
        operator: str | None = "aten::add",
    ) -> None:
        row = {"source": "profiler", "phase": "other", "generation": -1, "before_window": False}
        self._alloc_row(row, address, size, begin_us, end_us, operator)

    def claim(
        self, generation: int, time_us: float, tenant: str, sub: str = "", *, backdated: bool = True,
        gained: bool = True,
    ) -> None:  # fmt: skip
        values = (generation, at(time_us), tenant, sub, gained, backdated, "test")
        self.role.append(dict(zip(ROLE_COLUMNS, values, strict=True)))

    def phase(self, time_us: float, name: str) -> None:
        self.mark.append({"time_ns": at(time_us), "kind": "phase", "number": 0, "name": name})

    def phases(self, **begins_us: float) -> "Tables":
        for name, time_us in begins_us.items():
            self.phase(time_us, name)
        return self

    def lives(self, end_us: float = 1000) -> RankLives:
        timeline = read_timeline(self._marks(end_us))
        assert timeline is not None
        alloc, role = table_of_rows("alloc", self.alloc), table_of_rows("role", self.role)
        return read_rank_lives(alloc, role, timeline, "cpu")

    def _marks(self, end_us: float) -> Columns:
        window = [
            {"time_ns": at(0), "kind": "window_begin", "number": 0, "name": "memory"},
            {"time_ns": at(0), "kind": "step_begin", "number": 4, "name": ""},
            {"time_ns": at(end_us), "kind": "step_end", "number": 4, "name": ""},
            {"time_ns": at(end_us), "kind": "window_end", "number": 5, "name": "memory"},
        ]
        return table_of_rows("mark", [*window, *self.mark])

    def _alloc_row(
        self,
        row: dict[str, Any],
        address: int,
        size: int,
        begin_us: float,
        end_us: float | None,
        operator: str | None,
    ) -> None:
        freed = None if end_us is None else at(end_us)
        place = {"device": "cpu", "address": address, "bytes": size, "module": None, "thread": 1}
        times = {"allocated_ns": at(begin_us), "freed_ns": freed, "operator": operator}
        self.alloc.append(place | times | row)


_times = st.integers(0, 60)
_sizes = st.integers(1, 9)
_lengths = st.none() | st.integers(0, 30)
_addresses = st.integers(1, 5)
_modules = st.sampled_from([None, "", "a", "a.b", "a.b.c", "a.bc", "d", "d.b"])
_storages = st.lists(
    st.tuples(_addresses, _sizes, _times, _lengths, st.booleans(), st.booleans(), _modules), max_size=14
)
_blocks = st.lists(st.tuples(_addresses, _sizes, _times, _lengths), max_size=12)
_claims = st.lists(
    st.tuples(st.integers(0, 13), _times, st.sampled_from(PRECEDENCE), st.booleans(), st.booleans()),
    max_size=16,
)
_phases = st.lists(
    st.tuples(
        st.integers(-5, 70), st.sampled_from(["forward", "backward", "recompute", "optimizer", "news"])
    ),
    max_size=8,
)


def _filled(storages: list[Any], blocks: list[Any], claims: list[Any], phases: list[Any]) -> Tables:
    tables = Tables()
    for time_us, name in phases:
        tables.phase(time_us, name)
    for generation, (address, size, begin, length, known, before, module) in enumerate(storages):
        begin = -1 if before else begin
        end = None if length is None else begin + length
        operator = "aten.add.Tensor" if known and not before else None
        tables.storage(generation, address, size, begin, end, operator=operator, before=before, module=module)
    for address, size, begin, length in blocks:
        tables.block(address, size, begin, None if length is None else begin + length)
    for generation, time_us, tenant, backdated, gained in claims:
        sub = f"{tenant}-{time_us}"
        tables.claim(generation, time_us, tenant.value, sub, backdated=backdated, gained=gained)
    return tables


#: Tables with at least one row of memory; times are within [-1, 90] us.
TABLES = st.builds(_filled, _storages, _blocks, _claims, _phases).filter(lambda tables: bool(tables.alloc))
