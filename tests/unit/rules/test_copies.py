"""Copies go with their collectives: by the bytes of gathers, and without those that gradients need."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS
from tests.support.kernels import kernel_row, with_kernels
from tests.support.repeats import analysis_with, gather, reduce
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Finding
from zprof.rules.compute.copy_overhead import copy_overhead
from zprof.rules.rule import gather_copies_ns
from zprof.rules.volume.needless_reshard_after_forward import needless_reshard_after_forward

STEPS = 4


def run(out_ms: float, into_ms: float, shown_ms: float = 0.0) -> RunAnalysis:
    """Two units gathered for forward and backward, and reduced, with so much copying a step."""
    units = ("a", "b")
    moves = [gather(unit, 0, "forward") for unit in units]
    moves += [gather(unit, 0, "backward", shown_ms) for unit in units]
    moves += [reduce(unit, 0) for unit in units]
    rows = [
        kernel_row(name, ms, role="copy", uncovered_ns=int(STEPS * ms * MS))
        for name, ms in (("split_with_sizes_copy", out_ms), ("chunk_cat_cuda_kernel", into_ms))
    ]
    return with_kernels(analysis_with(moves, steps=STEPS), rows)


def of_backward(analysis: RunAnalysis) -> pd.DataFrame:
    rows = analysis.passes
    return analysis.collectives[(rows["phase"] == "backward") & (rows["kind"] == "all_gather")]


def test_half_of_the_gathers_has_half_of_the_copies_out() -> None:
    analysis = run(out_ms=8, into_ms=20)
    assert gather_copies_ns(analysis, of_backward(analysis)) == pytest.approx(4 * MS)
    assert gather_copies_ns(analysis, analysis.collectives) == pytest.approx(8 * MS)
    assert gather_copies_ns(analysis, analysis.collectives.iloc[:0]) == 0


def test_a_trace_without_copies_has_none() -> None:
    analysis = replace(run(8, 20), kernels=pd.DataFrame())
    assert gather_copies_ns(analysis, analysis.collectives) == 0


def test_gathers_that_need_not_be_win_their_copies_too() -> None:
    """At least half of the 4 ms of copies beside 70 % of the exposed time, at most all of them.

    Without names two MB are guessed to be copied in 4 us.
    """
    plain, copied = (needless_reshard_after_forward(run(ms, 0, shown_ms=3), None) for ms in (0, 8))
    assert isinstance(plain, Finding)
    assert isinstance(copied, Finding)
    assert copied.saving_ns[0] - plain.saving_ns[0] == pytest.approx(2 * MS, abs=2)
    assert copied.saving_ns[1] - plain.saving_ns[1] == pytest.approx(4 * MS - 4_000, abs=2)


def test_and_those_copies_are_not_told_twice() -> None:
    """8 ms of copies a step; where the gathers of the backward are a finding, 4 ms are theirs."""
    hidden, shown = (copy_overhead(run(8, 0, shown_ms=ms), None) for ms in (0, 3))
    assert isinstance(hidden, Finding)
    assert isinstance(shown, Finding)
    assert hidden.saving_ns[1] == pytest.approx(8 * MS, abs=2)
    assert shown.saving_ns[1] == pytest.approx(4 * MS, abs=2)
