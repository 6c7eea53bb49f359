"""copy_overhead: copies around collectives above 3 % of the step."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.kernels import healthy, kernel_row, with_kernels
from tests.support.rule_runs import GAP, Answer, found, judged, values, with_walls, without_collectives
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.compute.copy_overhead import copy_overhead

HOSTILE = "void at::split_with_sizes_copy<\x1b[31m>(int)"


def copying(ms: float, *, count: int = 80, role: str = "copy", gradients_ms: float = 0) -> RunAnalysis:
    """Eight steps of 100 ms on two ranks with copies of this long in each; 12 gathers of 4 MiB."""
    parts = ((HOSTILE, ms), ("chunk_cat_cuda_kernel", gradients_ms))
    rows = [
        kernel_row(name, 1, role=role, uncovered_ns=round(8 * each * MS), count=count)
        for name, each in parts
        if each
    ]
    return with_kernels(with_walls(healthy()), [*rows, kernel_row("gemm", 1_000)])


def on_one_rank(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, kernels=analysis.kernels[analysis.kernels["rank"] == 0])


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: copying(3), None),
        (lambda: copying(3.000_001), Confidence.HIGH),
        (lambda: copying(3.000_001, role="memcpy"), Confidence.HIGH),
        (lambda: copying(50, role="compute"), None),
        (lambda: copying(50, count=1), None),
        (lambda: on_one_rank(copying(50, count=3)), Confidence.HIGH),
        (lambda: without_collectives(copying(50)), GAP),
        # mostly copies of gradients are more likely padding
        (lambda: copying(50, gradients_ms=50), Confidence.HIGH),
        (lambda: copying(50, gradients_ms=51), Confidence.LOW),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(copy_overhead, run()) == expected


def test_it_saves_half_to_all_of_the_copies_and_escapes_their_names() -> None:
    finding = found(copy_overhead, copying(10))
    assert (finding.id, finding.saving_ns) == ("ZP507", (5 * MS, 10 * MS))
    assert values(finding, "bytes_per_s") == [pytest.approx(12 * (4 << 20) / 0.010)]
    assert finding.sentence.isprintable()
