"""What a thread does in a step: the order of the reference engine, written out by hand."""

from typing import Any

import numpy as np
import pytest

from zprof.planner.whatif.engine_policy import EnginePolicy
from zprof.planner.whatif.passes import PassWork, StepPasses, UnitSize, list_passes
from zprof.planner.whatif.replay import HEAD, TAIL, Compute, Launch, Op, build_program

UNITS = (
    UnitSize(name="root", gather_bytes=8, reduce_bytes=8, encloses=True),
    UnitSize(name="blocks.0", gather_bytes=64, reduce_bytes=64),
    UnitSize(name="blocks.1", gather_bytes=64, reduce_bytes=64),
)


def program(stage: int, micro_batches: int = 1, reduce_each: bool = True, **more: Any) -> list[Op]:
    passes, one = list_passes(UNITS, (2, 1), micro_batches, reduce_each), np.ones((1, 2))
    work = PassWork(head=one, passes=np.ones((len(passes), 1, 2)), tail=one, between=one)
    skeleton = StepPasses(
        units=UNITS, passes=passes, work=work, ranks=(0, 1), steps=(0,), micro_batches=micro_batches
    )
    usual = {"prefetch": 1, "keep": "none", "overlap_reduce": True, "overlap_gather": True, "in_flight": 2}
    return list(build_program(skeleton, EnginePolicy(stage=stage, **{**usual, **more})))


def shorten(op: Op) -> str:
    """Launches end in ``!``, waits in ``?``."""
    if isinstance(op, Compute):
        return {HEAD: "head", TAIL: "tail"}.get(op.what, f"{op.what}")
    return f"{op.key.replace('gather.', 'g').replace('reduce.', 'r').replace('parameters.', 'p')}" + (
        "!" if isinstance(op, Launch) else "?"
    )


def write_out(stage: int, **more: Any) -> str:
    return " ".join(map(shorten, program(stage, **more)))


@pytest.mark.parametrize(
    ("stage", "more", "order"),
    [
        # One unit ahead, and the root first in both directions.
        (
            3,
            {},
            "head g0! g1! g0? 0 g2! g1? 1 g2? 2 g0! g2! g0? 3 g1! g2? 4 r1! g1? 5 r2! 6 r1? r3! r2? r3? tail",
        ),
        (
            3,
            {"prefetch": 0, "keep": "last"},
            "head g0! g0? 0 g1! g1? 1 g2! g2? 2 g0! g0? 3 4 r1! g1! g1? 5 r2! 6 r1? r3! r2? r3? tail",
        ),
        (3, {"keep": "all"}, "head g0! g1! g0? 0 g2! g1? 1 g2? 2 3 4 r1! 5 r2! 6 r1? r3! r2? r3? tail"),
        # Gathers after the update, waited for in the next forward.
        (
            2,
            {},
            "head p0? 0 p1? 1 p2? 2 3 4 r1! 5 r2! 6 r1? r3! r2? r3? tail p0! tail p1! tail p2! tail",
        ),
        (2, {"overlap_reduce": False}, None),
        # All reductions are in flight.
        (1, {}, "head p0? 0 p1? 1 p2? 2 3 4 r1! 5 r2! 6 r3! r1? r2? r3? tail p0! tail p1! tail p2! tail"),
        (0, {}, "head 0 1 2 3 4 r1! 5 r2! 6 r3! r1? r2? r3? tail"),
    ],
)
def test_the_order_of_a_step(stage: int, more: dict[str, Any], order: str | None) -> None:
    found = write_out(stage, **more)
    if order is None:
        assert "r1! r1? 5" in found
    else:
        assert found == order


def test_gathers_that_do_not_overlap_are_waited_for_in_the_same_step() -> None:
    assert write_out(1, overlap_gather=False).endswith("tail p0? p1? p2?")
    late = write_out(2, overlap_gather=False, updates_first=True)
    assert late.endswith("tail p0! p1! p2! p0? p1? p2?")


def test_stage_0_reduces_whole_gradients_and_the_tail_is_shared_out() -> None:
    assert {op.kind for op in program(0) if isinstance(op, Launch)} == {"all_reduce"}
    shares = [op.share for op in program(2) if isinstance(op, Compute) and op.what == TAIL]
    assert sum(shares) == pytest.approx(1)


def test_each_micro_batch_ends_with_a_wait_for_its_reductions_if_it_has_any() -> None:
    each = [shorten(op) for op in program(3, micro_batches=2)]
    assert {"r1?", "r2?", "r3?"} <= set(each[: each.index("7")])
    once = [shorten(op) for op in program(1, micro_batches=2, reduce_each=False)]
    assert sum(op.startswith("r") and op.endswith("!") for op in once) == 3
    assert once.index("r1!") > once.index("7")
