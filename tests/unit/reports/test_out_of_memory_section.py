"""The section on failed allocations: every term that is known, and nothing where nothing failed."""

from msgspec.structs import replace

from tests.support.reports import snapshot
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.reports.pages.memory_device import build_out_of_memory_section
from zprof.reports.table import Table, format_cell

GIB = 1 << 30
FAILURE = OutOfMemory(
    rank=3,
    device="cuda:1",
    time_ns=5,
    requested_bytes=2 * GIB,
    driver_bytes=3 * GIB,
    device_free_bytes=None,
    live_bytes=7 * GIB,
    allocated_bytes=8 * GIB,
    awaiting_free_bytes=0,
    reserved_bytes=9 * GIB,
    split_bytes=GIB,
    free_segments_bytes=0,
    private_pools_bytes=0,
    largest_free_bytes=GIB // 2,
    tenants={Tenant.ACTIVATIONS: 6 * GIB},
    untagged_bytes=GIB,
    would_fit_defragmented=False,
    short_bytes=GIB,
    stack=("/home/me/model.py:7 attention",),
)


def with_failures(*failures: OutOfMemory) -> Report:
    report = snapshot()
    return replace(report, memory=replace(report.memory, out_of_memory=failures))


def test_nothing_is_shown_if_no_allocation_failed() -> None:
    assert build_out_of_memory_section(with_failures()) == ()


def test_known_terms_are_rows_and_unknown_ones_are_not() -> None:
    (section,) = build_out_of_memory_section(with_failures(FAILURE))
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    rows = {str(row.cells[0]): format_cell(row.cells[1]) for row in table.rows}
    assert rows["activations"] == "6.0 GiB"
    assert rows["requested"] == "2.0 GiB"
    assert rows["= reserved by the allocator"] == "9.0 GiB"
    assert "free on the device" not in rows
    assert "outside the allocator" not in rows


def test_the_last_of_many_are_shown() -> None:
    many = [replace(FAILURE, rank=rank) for rank in range(9)]
    (section,) = build_out_of_memory_section(with_failures(*many))
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    titles = [column.title for column in table.columns]
    assert len(titles) == 5
    assert "rank 8" in titles[-1]


def test_owners_are_marked_by_how_they_are_known() -> None:
    failure = replace(
        FAILURE,
        tenants={Tenant.ACTIVATIONS: 6 * GIB, Tenant.PARAMETERS: GIB},
        inferred_tenants=(Tenant.PARAMETERS,),
        unknown_tenants=(Tenant.GRADIENTS,),
    )
    (section,) = build_out_of_memory_section(with_failures(failure))
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    rows = {str(row.cells[0]): format_cell(row.cells[1]) for row in table.rows}
    assert (rows["activations"], rows["parameters"], rows["gradients"]) == ("6.0 GiB", "~1.0 GiB", "-")
