"""Numbers of the memory pages are leaves of the report."""

from collections.abc import Callable

import pytest

from tests.support.reports import memory_only, slower, snapshot
from zprof.model.cursor import follow, read
from zprof.model.report import Report
from zprof.reports.pages.memory import build_memory_detail_section, build_memory_section
from zprof.reports.pages.memory_device import build_device_section
from zprof.reports.pages.memory_snapshots import build_history_sections
from zprof.reports.table import Table


def tables(report: Report) -> list[Table]:
    sections = (
        *build_memory_section(report),
        *build_history_sections(report),
        *build_memory_detail_section(report, detail=False),
        *build_device_section(report, detail=False),
    )
    return [block for section in sections for block in section.blocks if isinstance(block, Table)]


@pytest.mark.parametrize("make", [memory_only, slower, snapshot])
def test_each_number_is_what_its_leaves_yield(make: Callable[[], Report]) -> None:
    report = make()
    shown = [value for table in tables(report) for value in table.list_values()]
    known = [value for value in shown if value.number is not None]
    traced = [value for value in known if value.leaves]
    assert len(traced) == len(known) > 0
    for value in traced:
        places = (follow(report, leaf) for leaf in value.leaves)
        assert read(*places, how=value.how).number == value.number, value
