"""What rules share: severities, gaps that are merged, copies of gathers; and each rule has its page."""

from pathlib import Path

import pytest

from tests.support.analyses import MS
from tests.support.kernels import kernel_row, with_kernels
from tests.support.repeats import analysis_with, gather, reduce
from tests.support.rule_runs import found, run_of, without_collectives
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Severity
from zprof.rules.compute.copy_overhead import copy_overhead
from zprof.rules.registry import all_rules
from zprof.rules.rule import (
    Rule,
    group_gaps,
    has_no_collectives,
    list_untested,
    rate_severity,
    untested_gap,
)

PAGES = Path(__file__).parents[3] / "docs/findings"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.cause.value)
def test_each_rule_has_its_page(rule: Rule) -> None:
    page = (PAGES / f"{rule.cause.finding_id}.md").read_text(encoding="utf-8")
    title = f"# {rule.cause.finding_id} {rule.cause.value}"
    assert page.startswith(f"{title}\n")
    assert " ".join(page.split()).startswith(f"{title} **{rule.cause.meaning}**")


def test_each_cause_has_one_rule_and_one_id() -> None:
    assert sorted(rule.cause for rule in all_rules()) == sorted(Cause)
    assert len({cause.finding_id for cause in Cause}) == len(Cause)


@pytest.mark.parametrize(
    ("saving", "severity"), [(10, Severity.HIGH), (9.9, Severity.MEDIUM), (5, Severity.MEDIUM), (4.9, "low")]
)
def test_severity_is_a_tenth_or_a_twentieth(saving: float, severity: Severity) -> None:
    assert rate_severity(saving, 100) is Severity(severity)


def test_gaps_of_the_same_missing_input_are_merged_and_keep_their_causes() -> None:
    causes = [Cause.NO_PREFETCH, Cause.FP32_REDUCE, Cause.DATA_LOADER]
    one, two = (untested_gap(cause, "why", "what") for cause in causes[:2])
    other = untested_gap(Cause.BLOCKING_SYNC, "other", "what")
    merged = group_gaps([one, other, two])
    assert [(gap.reason, gap.remedy) for gap in merged] == [("why", "what"), ("other", "what")]
    assert list_untested(causes, merged) == causes[:2]


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
