"""Gathers and reductions that a step repeats: each has one cause, from a threshold on, and a price."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.repeats import MEGABYTE, Move, analysis_with, gather, reduce
from tests.support.rule_runs import Run, found, judged, values, without_collectives
from tests.support.tables import selected
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.time.needless_collectives import (
    CollectiveCost,
    RepeatedGather,
    price_collectives,
    read_gathers,
    select_gone_with,
)
from zprof.analysis.time.passes import NO_PASSES
from zprof.causes.accumulation_regathers import CAUSE as accumulation_regathers
from zprof.causes.accumulation_syncs import CAUSE as accumulation_syncs
from zprof.causes.checkpoint_regathers import CAUSE as checkpoint_regathers
from zprof.causes.last_unit_regathered import CAUSE as last_unit_regathered
from zprof.causes.needless_reshard_after_forward import CAUSE as needless_reshard_after_forward

CAUSES = {
    cause.name: cause
    for cause in (
        accumulation_regathers,
        checkpoint_regathers,
        last_unit_regathered,
        needless_reshard_after_forward,
    )
}
UNITS = ("a", "b", "c")


def forward(micro_batch: int = 0, exposed_ms: float = 0.0) -> list[Move]:
    return [gather(unit, micro_batch, "forward", exposed_ms) for unit in UNITS]


def backward(
    micro_batch: int = 0, exposed_ms: float = 0.0, times: int = 1, last_ms: float = 0.0
) -> list[Move]:
    moves = []
    for unit in reversed(UNITS):
        exposed = last_ms if unit == "c" else exposed_ms
        between = 19.0 if unit == "c" else 40.0
        moves += [gather(unit, micro_batch, "backward", exposed, between) for _ in range(times)]
        moves.append(reduce(unit, micro_batch))
    return moves


def named(moves: Sequence[Move]) -> set[str]:
    analysis = analysis_with(moves)
    answers = {name: judged(cause, analysis) for name, cause in CAUSES.items()}
    assert "gap" not in answers.values()
    return {cause for cause, answer in answers.items() if answer is not None}


REPEATED = [*forward(), *backward(exposed_ms=3.0)]
LAST = [*forward(), *backward(last_ms=3.0)]
RESHARDED, LAST_UNIT = "needless_reshard_after_forward", "last_unit_regathered"
UNPLACED = Move(kind="all_gather", unit="a", micro_batch=None, phase="unknown", exposed_ms=9.0)
NAMELESS = Move(kind="all_gather", unit=None, micro_batch=0, phase="backward", exposed_ms=9.0)


@pytest.mark.parametrize(
    ("moves", "causes"),
    [
        ([*forward(), *backward()], set()),  # hidden
        ([*forward(), *backward(), *forward(1), *backward(1)], set()),  # two micro-batches
        ([*forward(), *backward(times=2)], set()),  # hidden recomputation
        ([*forward(exposed_ms=4.0), *backward()], set()),  # the first gather is needed
        (REPEATED, {RESHARDED}),  # after the forward
        (LAST, {LAST_UNIT}),  # of the last unit
        # in each micro-batch
        (
            [*forward(), *backward(), *forward(1, 3.0), *backward(1, 3.0, last_ms=3.0)],
            {"accumulation_regathers"},
        ),
        # for recomputation
        (
            [*forward(), *backward(exposed_ms=3.0, times=2, last_ms=3.0)],
            {RESHARDED, LAST_UNIT, "checkpoint_regathers"},
        ),
        # a last unit with a third of the forward between
        ([*forward(), gather("c", 0, "backward", 3.0, between_ms=20.0), *backward()[1:]], {RESHARDED}),
        # a single unit
        ([gather("a", 0, "forward"), gather("a", 0, "backward", 3.0, between_ms=1.0)], {RESHARDED}),
        ([*REPEATED, UNPLACED, NAMELESS], {RESHARDED}),  # some unknown
    ],
)
def test_each_gather_has_one_cause(moves: list[Move], causes: set[str]) -> None:
    assert named(moves) == causes


SECOND = [*forward(), *backward(), *forward(1, 3.0), *backward(1)]


@pytest.mark.parametrize(
    ("cause", "run", "expected"),
    [
        (RESHARDED, lambda: analysis_with(REPEATED), "low"),  # free memory is unknown
        (RESHARDED, lambda: analysis_with(REPEATED, free_bytes=3 * MEGABYTE), "high"),
        ("accumulation_regathers", lambda: analysis_with(SECOND), "medium"),
        ("accumulation_regathers", lambda: analysis_with(SECOND, free_bytes=1), "low"),
        (LAST_UNIT, lambda: analysis_with(LAST), "high"),
        (LAST_UNIT, lambda: analysis_with(LAST, steps=2), "medium"),
        (LAST_UNIT, lambda: analysis_with(LAST, method="order"), "medium"),
        (LAST_UNIT, lambda: analysis_with(LAST, noise_floor_ns=3 * MS + 1), "low"),
        *(
            (cause, lambda move=move: analysis_with([move]), "gap")
            for cause in CAUSES
            for move in (UNPLACED, replace(NAMELESS, phase="forward"))
        ),
        *((cause, lambda: analysis_with(forward()), None) for cause in CAUSES),
    ],
)
def test_confidence(cause: str, run: Run, expected: str | None) -> None:
    assert judged(CAUSES[cause], run()) == expected


@pytest.mark.parametrize(
    ("repeat", "gone"),
    [
        # a program that keeps all units keeps the last one
        (RepeatedGather.FOR_BACKWARD, {RepeatedGather.FOR_BACKWARD, RepeatedGather.OF_LAST_UNIT}),
        (RepeatedGather.OF_LAST_UNIT, {RepeatedGather.OF_LAST_UNIT}),
        (RepeatedGather.FOR_RECOMPUTATION, {RepeatedGather.FOR_RECOMPUTATION}),
    ],
)
def test_which_gathers_vanish_together(repeat: RepeatedGather, gone: set[RepeatedGather]) -> None:
    gathers = read_gathers(analysis_with([*forward(), *backward(exposed_ms=3.0, times=2, last_ms=3.0)]))
    assert set(select_gone_with(gathers, repeat).texts("repeat").tolist()) == gone


def test_the_rank_with_least_memory_decides_if_units_can_be_kept() -> None:
    run = analysis_with(REPEATED, free_bytes=3 * MEGABYTE)
    (device,) = run.memory.devices
    full = replace(device, rank=1, device_used_bytes=device.device_total_bytes)
    both = replace(run, memory=replace(run.memory, devices=(device, full)))
    assert judged(needless_reshard_after_forward, both) is None


def test_a_step_that_lost_the_last_unit_has_no_other_as_its_last() -> None:
    moves = [*forward(), gather("b", 0, "backward", 12.0, between_ms=19.0), *backward()]
    whole = analysis_with(moves)
    passes = whole.passes
    torn = replace(
        whole, passes=selected(passes, (passes.ints("step") != 2) | ~passes.texts("unit").equals("c"))
    )
    assert judged(last_unit_regathered, torn) is None


def priced(*exposed_ms: float) -> CollectiveCost:
    """The cost of all gathers of a step, but for one of 8 ms beside them."""
    made = analysis_with([gather(f"u{place}", 0, "forward", ms) for place, ms in enumerate([*exposed_ms, 8])])
    chosen = ~made.collectives.texts("unit").equals(f"u{len(exposed_ms)}")
    return price_collectives(made, Columns({"row": np.flatnonzero(chosen)}))


def test_a_needless_collective_costs_what_shows_and_its_transfer_if_nothing_does() -> None:
    one, hidden = priced(2.0), priced(0.0, 0.0)
    assert (one.count, one.bytes, one.transfer_ns, one.exposed_ns) == (1, MEGABYTE, 4 * MS, 2 * MS)
    assert one.lost_ns == one.exposed_ns
    assert hidden.lost_ns == hidden.transfer_ns > 0


def reductions(*exposed_ms: float) -> list[Move]:
    """Reductions of three units in each micro-batch, with this exposed time."""
    return [reduce(unit, number, ms / 3) for number, ms in enumerate(exposed_ms) for unit in "abc"]


def partly(first: str, whole: str) -> RunAnalysis:
    """The first micro-batch reduces these units only."""
    return analysis_with([*(reduce(unit, 0, 9.0) for unit in first), *(reduce(unit, 1) for unit in whole)])


def hidden_reductions(ratio: float | None) -> RunAnalysis:
    """Four micro-batches that reduce, hidden; the links carry this many times the formula's bytes."""
    made = analysis_with(reductions(0.0, 0.0, 0.0, 0.0))
    assert made.volume is not None
    seen = None if ratio is None else replace(made.volume, seen_bytes=round(12_000_000 * ratio), ratio=ratio)
    return replace(made, volume=seen)


UNPLACED_REDUCTION = Move(kind="all_reduce", unit=None, micro_batch=None, phase="unknown", exposed_ms=9.0)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: analysis_with(reductions(4.0, 4.0, 4.0)), "high"),
        (lambda: analysis_with(reductions(30.0)), None),  # one reduction is needed
        (lambda: hidden_reductions(1.0), None),  # the formula of stages 2 and 3 has them
        (lambda: hidden_reductions(4.0), "low"),
        (lambda: hidden_reductions(None), "low"),
        (lambda: partly("abcd", "abcdefghi"), None),
        (lambda: analysis_with([reduce("a", i, 9.0, updates=i) for i in range(4)]), None),  # updates between
        (lambda: analysis_with([UNPLACED_REDUCTION]), "gap"),
        (
            lambda: without_collectives(replace(analysis_with(reductions(4.0, 4.0)), passes=NO_PASSES)),
            "gap",
        ),
    ],
)
def test_micro_batches_that_reduce(run: Run, expected: str | None) -> None:
    assert judged(accumulation_syncs, run()) == expected


def test_all_but_the_last_are_counted_and_priced() -> None:
    finding = found(accumulation_syncs, analysis_with(reductions(4.0, 4.0, 4.0)))
    assert {3, 6} <= set(values(finding, "count"))
    assert finding.saving_ns == (0, pytest.approx(8 * MS, abs=2))


def test_hidden_reductions_save_no_time_and_state_their_volume() -> None:
    run = hidden_reductions(4.0)
    finding = found(accumulation_syncs, run)
    assert finding.saving_ns == (0, 0)
    assert run.volume is not None
    assert {48_000_000, run.volume.expected_bytes} <= set(values(finding, "bytes"))
