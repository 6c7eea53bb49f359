"""Padding beyond the model, and kernels that fill up: which rows count, and which number of reductions."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.rules.volume.uneven_shapes import measure_filling, measure_padding

PLAN = Scenario(ranks=2, steps=2, units=6, unit_bytes=3_960_000)
#: Reduced in a step, once.
ELEMENTS = 6 * 990_000


def job(parameters: float, *, micro_batches: int = 1) -> RunAnalysis:
    """A program that says how many parameters it has."""
    made = analysis_of(PLAN)
    facts = replace(made.training, parameters=round(parameters), micro_batches=micro_batches)
    return replace(made, training=facts)


def ratio(analysis: RunAnalysis) -> float | None:
    found = measure_padding(analysis, None)
    return found.ratio if found else None


def test_as_much_again_is_another_model() -> None:
    assert ratio(job(ELEMENTS / 2.0)) is None
    assert ratio(job(ELEMENTS / 1.95)) == pytest.approx(0.95, abs=1e-6)


def test_reductions_are_those_of_all_micro_batches_however_much_is_padded() -> None:
    assert ratio(job(ELEMENTS / 4 / 1.3, micro_batches=4)) == pytest.approx(0.3, abs=1e-6)


def test_a_hundredth_less_is_still_all_micro_batches() -> None:
    """Less than the model: no padding.  As three reductions of four it would be a third."""
    assert ratio(job(1_500_000, micro_batches=4)) is None


def test_where_gradients_are_scattered_only_those_are_the_model() -> None:
    analysis = job(ELEMENTS / 2 / 1.1)
    rows = analysis.collectives
    kinds = rows["kind"].astype(str)
    norms = (kinds == "reduce_scatter") & rows["unit"].isin(["blocks.6", "blocks.7", "blocks.8"])
    some = replace(analysis, collectives=rows.assign(kind=kinds.mask(norms, "all_reduce")))
    assert ratio(some) == pytest.approx(0.1, abs=1e-6)


def filled(role: str, *, before: int = 0) -> float:
    row = {
        "rank": 0, "name": "x" * before + "chunk_cat_cuda_kernel", "role": role, "count": 1,
        "total_ns": 40 * MS, "uncovered_ns": 4 * MS,
    }  # fmt: skip
    found = measure_filling(replace(job(ELEMENTS), kernels=pd.DataFrame([row])))
    return found.total_ns if found else 0.0


def test_copies_cost_what_nothing_runs_beside() -> None:
    assert filled("compute") == 10 * MS  # of four steps
    assert filled("copy") == 1 * MS


def test_four_hundred_letters_of_a_name_are_read() -> None:
    assert filled("copy", before=330) > 0
    assert filled("copy", before=405) == 0
