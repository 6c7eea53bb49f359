"""Rules about time in kernels: slower beside collectives, copies around them, lost efficiency."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.kernels import healthy, kernel_row, with_kernels
from tests.support.rule_runs import Run, found, judged, values, with_ranks, with_walls, without_collectives
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.comm_slows_compute import CAUSE as comm_slows_compute
from zprof.causes.copy_overhead import CAUSE as copy_overhead
from zprof.causes.lost_compute_efficiency import CAUSE as lost_compute_efficiency


def slowed(
    beside_ms: float,
    judged_ms: float,
    excess_ms: float,
    *,
    kernels: tuple[int, int] = (20, 20),
    device: str = "cuda",
    median_ratio: float = 1.6,
) -> RunAnalysis:
    """Two ranks, eight steps of 100 ms: compute beside collectives, of it judged, and longer than alone.

    ``kernels``: how many of each rank are judged; ``median_ratio``: how much longer the median one takes.
    """
    row = kernel_row(
        "gemm", 1_600, beside_ns=round(8 * beside_ms * MS), judged_beside_ns=round(8 * judged_ms * MS),
        judged_count=1, excess_ns=round(8 * excess_ms * MS), alone_median_ns=100.0,
        overlapped_median_ns=100 * median_ratio,
    )  # fmt: skip
    made = with_kernels(with_walls(healthy()), [row], device=device)
    return replace(made, kernels=changed(made.kernels, judged_count=kernels))


def with_names(
    *rows: tuple[str, float, float, float], device: str = "cuda", wall_ms: float = 10
) -> RunAnalysis:
    """Names with the time beside collectives, of it longer than alone (ms), and the median's ratio."""
    made = [
        kernel_row(
            name, 800, beside_ns=ms * MS, judged_beside_ns=ms * MS, judged_count=40, excess_ns=over * MS,
            alone_median_ns=100.0, overlapped_median_ns=100 * ratio,
        )
        for name, ms, over, ratio in rows
    ]  # fmt: skip
    return with_kernels(with_walls(healthy(), wall_ms * MS), made, device=device)


ONE_NS = 1 / MS


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: slowed(10, 10, 10), None),  # no time alone
        # eight kernels, and 2 % of the time, must be judged
        (lambda: slowed(100, 50, 25, kernels=(4, 4)), "medium"),  # eight kernels
        (lambda: slowed(100, 2, 1), "medium"),  # 2 % judged
        (lambda: slowed(6 + ONE_NS, 6, 0, kernels=(1, 1)), "gap"),  # enough to ask for
        (healthy, None),  # nothing beside
        # on a CPU the threads of gloo share the cores
        (lambda: slowed(100, 50, 25, device="cpu"), "low"),
        # a median of 1.10 is other work
        (lambda: slowed(100, 50, 25, median_ratio=1.10), None),  # median 1.10
        # half of the time in names that are slower themselves
        (lambda: with_names(("gemm", 49, 44, 2), ("norm", 51, 0, 2)), "low"),  # 49 % agree
        (lambda: with_names(("gemm", 300, 200, 3), ("norm", 310, 0, 1), wall_ms=250), None),  # another shape
    ],
)
def test_comm_slows_compute(run: Run, expected: str | None) -> None:
    assert judged(comm_slows_compute, run()) == expected


def test_the_excess_is_lost() -> None:
    """Half of the compute was judged, and is 1.6 times as long: 18.75 of 50 ms are lost."""
    finding = found(comm_slows_compute, slowed(50, 25, 9.375))
    assert finding.id == "ZP506"
    assert finding.saving_ns == (0, pytest.approx(18.75 * MS, rel=1e-3))
    assert values(finding, "ratio")[0] == pytest.approx(1.6)


def test_no_more_than_the_compute_of_a_rank_is_lost() -> None:
    assert found(comm_slows_compute, with_ranks(slowed(60, 30, 15), compute_ns=MS)).saving_ns == (0, MS)


HOSTILE = "void at::split_with_sizes_copy<\x1b[31m>(int)"


def copying(ms: float, *, count: int = 80, role: str = "copy", gradients_ms: float = 0) -> RunAnalysis:
    """Eight steps of 100 ms on two ranks with copies of this long in each; 12 gathers of 4 MiB."""
    parts = ((HOSTILE, ms), ("chunk_cat_cuda_kernel", gradients_ms))
    rows = [
        kernel_row(name, 8 * each, role=role, uncovered_ns=round(8 * each * MS), count=count)
        for name, each in parts
        if each
    ]
    return with_kernels(with_walls(healthy()), [*rows, kernel_row("gemm", 1_000)])


def on_one_rank(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, kernels=selected(analysis.kernels, analysis.kernels.ints("rank") == 0))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: copying(3), None),
        (lambda: copying(3.000_001, role="memcpy"), "medium"),
        (lambda: copying(50, role="compute"), None),
        (lambda: copying(50, count=1), None),
        (lambda: on_one_rank(copying(50, count=3)), "medium"),
        (lambda: without_collectives(copying(50)), "gap"),
        # mostly copies of gradients are more likely padding
        (lambda: copying(50, gradients_ms=50), "low"),  # as fast as copies in
        (lambda: copying(50, gradients_ms=2), "high"),  # slower
    ],
)
def test_copy_overhead(run: Run, expected: str | None) -> None:
    assert judged(copy_overhead, run()) == expected


def test_all_copies_are_lost_and_their_names_escaped() -> None:
    finding = found(copy_overhead, copying(10))
    assert (finding.id, finding.saving_ns) == ("ZP507", (0, 10 * MS))
    assert values(finding, "bytes_per_s") == [pytest.approx(12 * (4 << 20) / 0.010)]
    assert finding.sentence.isprintable()


def computing(
    milliseconds: float, *, ranks: int = 4, tokens: int | None = None, **more: float
) -> RunAnalysis:
    """A step of this many ms of GEMMs, and an optimizer of 50 ms."""
    rows = [kernel_row("gemm", 8 * milliseconds, **more), kernel_row("multi_tensor_apply_kernel", 400)]
    made = with_kernels(healthy(ranks), rows)
    return replace(made, training=replace(made.training, tokens_per_step=tokens))


def slower_on(slow: int) -> RunAnalysis:
    made = computing(100)
    late = (made.kernels.ints("rank") < slow) & made.kernels.texts("name").equals("gemm")
    return replace(made, kernels=changed(made.kernels, late, total_ns=8 * 130 * MS))


def renamed(analysis: RunAnalysis) -> RunAnalysis:
    gemms = analysis.kernels.texts("name").equals("gemm")
    return replace(analysis, kernels=changed(analysis.kernels, gemms, name="triton_mm"))


def with_other_kernels(milliseconds: float) -> RunAnalysis:
    """100 ms of kernels that the baseline has, and these that it lacks."""
    return with_kernels(healthy(4), [kernel_row("gemm", 100), kernel_row("flash", milliseconds)])


SLOWED = {"beside_ns": 480 * MS, "judged_beside_ns": 480 * MS, "judged_count": 50, "excess_ns": 240 * MS}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda: computing(100), lambda: computing(130), "medium"),  # slower
        (lambda: computing(100), lambda: computing(105), None),  # 5 %
        (lambda: computing(100, tokens=9), lambda: computing(111, tokens=9), "high"),  # above 10 %
        (lambda: computing(100), lambda: slower_on(2), None),  # two of four ranks are stragglers
        (lambda: computing(100), lambda: computing(130, **SLOWED), None),  # slowed by collectives
        (lambda: computing(130, **SLOWED), lambda: computing(130), None),  # takes no longer than it did
        (lambda: computing(130, **SLOWED), lambda: computing(150), "medium"),  # longer than it did, slowed
        (lambda: computing(100, tokens=1_000), lambda: computing(200, tokens=2_000), None),  # twice the work
        (lambda: computing(100), lambda: computing(200, count=160), "gap"),  # perhaps other work
        (lambda: computing(100, tokens=9), lambda: computing(130, count=160, tokens=9), "high"),  # known work
        (lambda: computing(100), lambda: renamed(computing(130)), "gap"),  # other kernels
        (lambda: computing(10), lambda: with_other_kernels(101), "gap"),  # less than half
        (lambda: None, lambda: computing(130), "gap"),  # no baseline
        (lambda: healthy(4), lambda: computing(130), "gap"),  # no kernels of the baseline
        (lambda: computing(100), lambda: healthy(4), None),  # no kernels
    ],
)
def test_lost_compute_efficiency(
    before: Callable[[], RunAnalysis | None], after: Run, expected: str | None
) -> None:
    assert judged(lost_compute_efficiency, after(), before()) == expected


def test_what_is_lost_is_stated_at_equal_work() -> None:
    finding = found(lost_compute_efficiency, computing(260, tokens=2_000), computing(100, tokens=1_000))
    assert (finding.id, values(finding, "ratio")[0]) == ("ZP508", pytest.approx(1.3))


def test_the_larger_loss_counts_with_and_without_the_estimated_slowdown() -> None:
    """50 ms against the 100 ms that kernels take alone, 20 ms against the 130 ms measured."""
    finding = found(lost_compute_efficiency, computing(150), computing(130, **SLOWED))
    assert finding.saving_ns == (0, pytest.approx(50 * MS, rel=0.01))
