"""How ranks of snapshots differ: shown from a few percent on, with the groups that explain it."""

import pytest
from msgspec.structs import replace

from tests.support.reports import snapshot
from zprof.model.memory_changes import GroupChange, RankSpread
from zprof.model.report import Report
from zprof.reports.page import Note
from zprof.reports.pages.memory_changes import build_rank_spread_section
from zprof.reports.table import Table, format_cell

MIB = 1 << 20


def with_peaks(*peaks_mib: int, grown: int = 3) -> Report:
    """Ranks with these peaks; the largest holds more in ``grown`` places."""
    report = snapshot()
    ranks = tuple(
        replace(report.memory.per_rank[0], rank=number, peak_bytes=peak * MIB)
        for number, peak in enumerate(peaks_mib)
    )
    largest, smallest = max(peaks_mib), min(peaks_mib)
    growth = (largest - smallest) * MIB // grown
    sizes = [(smallest * MIB, smallest * MIB), *[(0, growth)] * grown]
    spread = RankSpread(
        largest_rank=peaks_mib.index(largest),
        smallest_rank=peaks_mib.index(smallest),
        difference_bytes=grown * growth,
        tenant="activations",
        delta_bytes={"activations": grown * growth},
        groups=tuple(
            GroupChange(
                tenant="activations",
                sub="saved",
                where=f"/home/me/model.py:{line} forward",
                operator="",
                a_bytes=a,
                b_bytes=b,
                a_blocks=int(a > 0),
                b_blocks=1,
            )
            for line, (a, b) in enumerate(sizes)
        ),
    )
    return replace(report, memory=replace(report.memory, per_rank=ranks, spread=spread))


@pytest.mark.parametrize("peaks", [(100, 100), (100, 102)])
def test_ranks_with_about_the_same_peak_have_no_section(peaks: tuple[int, int]) -> None:
    assert build_rank_spread_section(with_peaks(*peaks)) == ()


def test_rows_sum_to_both_peaks_even_if_some_are_not_shown() -> None:
    (section,) = build_rank_spread_section(with_peaks(100, 160, 100, grown=6), short=True)
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    *rows, rest, total = [[format_cell(cell) for cell in row.cells] for row in table.rows]
    assert rest[1:] == ["100.0 MiB", "120.0 MiB", "+20.0 MiB"]
    assert total[1:] == ["100.0 MiB", "160.0 MiB", "+60.0 MiB"]
    assert all(row[1:] == ["0 B", "10.0 MiB", "+10.0 MiB"] for row in rows)


def test_only_ranks_unlike_the_others_are_named() -> None:
    (section,) = build_rank_spread_section(with_peaks(100, 160, 101, 40, 99, 100))
    (note,) = [block.text for block in section.blocks if isinstance(block, Note)]
    _, _, outliers = note.partition("(")[2].partition("(")
    assert "above: rank 1, below: rank 3" in outliers
