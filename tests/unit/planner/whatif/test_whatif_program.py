"""What a thread does in a step: the order of the reference engine, written out by hand."""

import numpy as np

from zprof.planner.whatif.engine_policy import EnginePolicy
from zprof.planner.whatif.passes import PassWork, StepPasses, UnitSize, list_passes
from zprof.planner.whatif.replay import HEAD, TAIL, Await, Compute, Launch, Op, build_program

UNITS = (
    UnitSize(name="root", gather_bytes=8, reduce_bytes=8, encloses=True),
    UnitSize(name="blocks.0", gather_bytes=64, reduce_bytes=64),
    UnitSize(name="blocks.1", gather_bytes=64, reduce_bytes=64),
)


def skeleton(micro_batches: int = 1, *, reduce_each: bool = True) -> StepPasses:
    passes = list_passes(UNITS, (2, 1), micro_batches, reduce_each)
    one = np.ones((1, 2))
    work = PassWork(head=one, passes=np.ones((len(passes), 1, 2)), tail=one, between=one)
    return StepPasses(
        units=UNITS, passes=passes, work=work, ranks=(0, 1), steps=(0,), micro_batches=micro_batches
    )


def habits(stage: int, **more: object) -> EnginePolicy:
    usual = {"prefetch": 1, "keep": "none", "overlap_reduce": True, "overlap_gather": True, "in_flight": 2}
    return EnginePolicy(stage=stage, **{**usual, **more})  # type: ignore[arg-type]


def said(op: Op) -> str:
    """Short enough to write a whole step."""
    if isinstance(op, Compute):
        return {HEAD: "head", TAIL: "tail"}.get(op.what, f"work {op.what}")
    return f"{op.key}!" if isinstance(op, Launch) else f"{op.key}?"


def step(stage: int, **more: object) -> str:
    return ", ".join(said(op) for op in build_program(skeleton(), habits(stage, **more)))


def test_stage_3_gathers_one_ahead_and_the_root_first_in_both_directions() -> None:
    assert step(3) == (
        "head, "
        "gather.0!, gather.1!, gather.0?, work 0, "
        "gather.2!, gather.1?, work 1, "
        "gather.2?, work 2, "
        "gather.0!, gather.2!, gather.0?, work 3, "
        "gather.1!, gather.2?, work 4, reduce.1!, "
        "gather.1?, work 5, reduce.2!, "
        "reduce.1?, work 6, reduce.3!, reduce.2?, reduce.3?, "
        "tail"
    ).replace("reduce.1?, work 6", "work 6, reduce.1?")


def test_stage_3_without_prefetch_gathers_when_a_unit_is_needed() -> None:
    assert "gather.0!, gather.0?, work 0, gather.1!, gather.1?, work 1" in step(3, prefetch=0)


def test_kept_units_are_not_gathered_again() -> None:
    assert step(3, keep="last").count("gather.2!") == 1
    assert step(3, keep="last").count("gather.1!") == step(3, keep="last").count("gather.0!") == 2
    assert all(step(3, keep="all").count(f"gather.{unit}!") == 1 for unit in range(3))


def test_stage_2_gathers_after_the_update_and_waits_in_the_next_forward() -> None:
    assert step(2) == (
        "head, parameters.0?, work 0, parameters.1?, work 1, parameters.2?, work 2, work 3, "
        "work 4, reduce.1!, work 5, reduce.2!, work 6, reduce.1?, reduce.3!, reduce.2?, reduce.3?, "
        "tail, parameters.0!, tail, parameters.1!, tail, parameters.2!, tail"
    )


def test_gathers_that_do_not_overlap_are_waited_for_in_the_same_step() -> None:
    assert step(1, overlap_gather=False).endswith("tail, parameters.0?, parameters.1?, parameters.2?")


def test_on_a_device_gathers_that_are_waited_for_come_after_the_whole_update() -> None:
    late = step(2, overlap_gather=False, updates_first=True)
    assert late.endswith(
        "tail, parameters.0!, parameters.1!, parameters.2!, parameters.0?, parameters.1?, parameters.2?"
    )
    assert step(2, updates_first=True) == step(2)


def test_stages_0_and_1_have_all_reductions_in_flight() -> None:
    for stage in (0, 1):
        assert "reduce.3!, reduce.1?, reduce.2?, reduce.3?" in step(stage)


def test_stage_0_reduces_whole_gradients_and_gathers_nothing() -> None:
    ops = build_program(skeleton(), habits(0))
    assert {op.kind for op in ops if isinstance(op, Launch)} == {"all_reduce"}
    assert not any(isinstance(op, Await) and op.key.startswith("parameters") for op in ops)


def test_reductions_that_do_not_overlap_are_waited_for_at_once() -> None:
    assert "reduce.1!, reduce.1?, work 5" in step(2, overlap_reduce=False)


def test_all_shares_of_the_tail_are_the_tail() -> None:
    shares = [op.share for op in build_program(skeleton(), habits(2)) if said(op) == "tail"]
    assert abs(sum(shares) - 1) < 1e-12


def test_each_micro_batch_ends_with_a_wait_for_its_reductions() -> None:
    ops = [said(op) for op in build_program(skeleton(2), habits(3))]
    second = ops.index("work 7")
    assert {"reduce.1?", "reduce.2?", "reduce.3?"} <= set(ops[:second])
    assert ops.count("gather.1!") == 4


def test_without_a_reduction_in_each_micro_batch_there_is_one_at_the_end() -> None:
    ops = [said(op) for op in build_program(skeleton(2, reduce_each=False), habits(1))]
    assert sum(op.startswith("reduce") and op.endswith("!") for op in ops) == 3
    assert ops.index("reduce.1!") > ops.index("work 7")
