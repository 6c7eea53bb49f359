"""Random tables with modules and phases, for properties."""

from typing import Any

from hypothesis import strategies as st
from memory_tables import Tables

from zprof.model.tenants import PRECEDENCE

MODULES = [None, "", "a", "a.b", "a.b.c", "a.bc", "d", "d.b"]
_times = st.integers(0, 60)
_lengths = st.none() | st.integers(0, 30)
_addresses = st.integers(1, 5)
_storages = st.lists(
    st.tuples(
        _addresses,
        st.integers(1, 9),
        _times,
        _lengths,
        st.booleans(),
        st.booleans(),
        st.sampled_from(MODULES),
    ),
    max_size=14,
)
_blocks = st.lists(st.tuples(_addresses, st.integers(1, 9), _times, _lengths), max_size=12)
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
        tables.claim(
            generation, time_us, tenant.value, f"{tenant}-{time_us}", backdated=backdated, gained=gained
        )
    return tables


#: Tables with at least one row of memory; times are within [-1, 90] us.
TABLES = st.builds(_filled, _storages, _blocks, _claims, _phases).filter(lambda tables: bool(tables.alloc))
