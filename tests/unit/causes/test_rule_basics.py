"""What rules share: severities, gaps that are merged, copies of gathers; and each rule has its page."""

from pathlib import Path

import pytest

from docs.tools.finding_index import INDEX, write_index
from tests.support.analyses import MS
from tests.support.kernels import kernel_row, with_kernels
from tests.support.repeats import analysis_with, gather, reduce
from tests.support.rule_runs import found, run_of, without_collectives
from zprof.analysis.analysis import RunAnalysis, has_no_collectives
from zprof.causes import load_causes
from zprof.causes.cause import Cause
from zprof.causes.copy_overhead import CAUSE as copy_overhead

PAGES = Path(__file__).parents[3] / "docs/findings"


@pytest.mark.parametrize("cause", load_causes().values(), ids=lambda cause: cause.name)
def test_each_cause_has_its_page(cause: Cause) -> None:
    page = (PAGES / f"{cause.id}.md").read_text(encoding="utf-8")
    title = f"# {cause.id} {cause.name}"
    assert page.startswith(f"{title}\n")
    assert " ".join(page.split()).startswith(f"{title} **{cause.meaning}**")


def test_the_index_is_that_of_the_records() -> None:
    assert INDEX.read_text(encoding="utf-8") == write_index()


def test_ids_are_used_once() -> None:
    assert len({cause.id for cause in load_causes().values()}) == len(load_causes())


def test_one_rank_has_no_collectives_to_record() -> None:
    assert not has_no_collectives(run_of(ranks=1))
    assert not has_no_collectives(run_of())
    assert has_no_collectives(without_collectives(run_of()))


def copying(out_ms: float, into_ms: float, shown_ms: float = 0.0) -> RunAnalysis:
    """Two units gathered for forward and backward, and reduced, with this much copying per step."""
    moves = [gather(unit, 0, "forward") for unit in "ab"]
    moves += [gather(unit, 0, "backward", shown_ms) for unit in "ab"]
    moves += [reduce(unit, 0) for unit in "ab"]
    rows = [
        kernel_row(name, ms, role="copy", uncovered_ns=int(4 * ms * MS))
        for name, ms in (("split_with_sizes_copy", out_ms), ("chunk_cat_cuda_kernel", into_ms))
    ]
    return with_kernels(analysis_with(moves, steps=4), rows)


@pytest.mark.parametrize(
    ("into_ms", "shown_ms", "lost_ms"),
    [(0, 0, 8), (0, 3, 4), (20, 3, 24)],  # half of the gathers are needless, and no reduction
)
def test_copies_of_needless_gathers_are_not_counted_twice(
    into_ms: float, shown_ms: float, lost_ms: float
) -> None:
    saving = found(copy_overhead, copying(8, into_ms, shown_ms)).saving_ns
    assert saving[1] == pytest.approx(lost_ms * MS, abs=2)
