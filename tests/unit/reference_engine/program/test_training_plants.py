"""Every plant does what its cause is about, seen without a clock: launches, bytes, order, memory."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from training_helpers import Run, healthy, planted, started

from zprof.model.findings import read_index
from zprof.reference_engine.program.plants import PLANTS, find_plant, format_plants
from zprof.reference_engine.program.train_config import TrainConfig, replace_fields

BLOCKS = ("blocks.0", "blocks.1", "blocks.2")
UNITS = ("root", *BLOCKS)


@pytest.fixture
def start(monkeypatch):
    def run(config: TrainConfig, **where: int) -> Run:
        return started(monkeypatch, config, **where)

    return run


@pytest.fixture
def pair(start):
    """The planted and the healthy run of a cause, after a step."""

    def run(cause: str, **requested: object) -> tuple[Run, Run]:
        runs = start(planted(cause, **requested)), start(healthy(cause, **requested))
        for one in runs:
            one.steps()
        return runs

    return run


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.cause)
def test_a_plant_is_a_cause_and_its_fix_removes_it(plant):
    assert plant.cause in {entry.name for entry in read_index()}
    assert [other.cause for other in PLANTS].count(plant.cause) == 1
    assert f"{plant.cause} " in format_plants()
    faulty, fixed = plant.apply(TrainConfig()), plant.build_fixed_config(TrainConfig())
    assert (faulty.plant, fixed.plant) == (plant.cause, None)
    assert replace_fields(faulty, {"plant": None}) not in (TrainConfig(), fixed)
    assert plant.is_modelled == (faulty.link is not None) == (faulty.compute is not None)


def test_what_is_asked_for_beside_a_plant_stays_but_may_not_contradict_it():
    config = planted("no_prefetch", gpt__layers=7, link__latency_s=1.0)
    assert (config.gpt.layers, config.link.latency_s, config.zero.forward_prefetch) == (7, 1.0, 0)
    assert planted("no_prefetch", zero__forward_prefetch=0).zero.forward_prefetch == 0
    for cause, requested, word in (
        ("no_prefetch", {"zero__forward_prefetch": 1}, "forward_prefetch"),
        ("no_prefetch", {"zero__stage": 2}, "stage"),
        ("accumulation_syncs", {"zero__micro_batches": 1}, "micro_batches"),
        ("stragler", {}, "straggler_rank"),
    ):
        with pytest.raises(ValueError, match=word):
            find_plant(cause).apply(TrainConfig(), {n.replace("__", "."): v for n, v in requested.items()})


def test_the_straggler_is_late_once_a_step_also_with_accumulation_and_recomputation(start):
    beside = {"zero__micro_batches": 2, "activations__checkpoint": True}
    for rank in (0, 1):
        run = start(planted("straggler_rank", **beside), rank=rank)
        run.steps(3)
        late = sum(seconds > 0.03 for seconds in run.sleeps)
        assert late == (3 if rank == 1 else 0)


def test_the_rotating_straggler_is_another_rank_in_each_step(start):
    late = []
    for rank in range(3):
        run = start(planted("rotating_straggler", batch=6), rank=rank, world_size=3)
        seen = []
        for _ in range(6):
            run.steps()
            seen.append(any(seconds > 0.03 for seconds in run.sleeps))
        late.append(seen)
    assert [[rank[step] for rank in late].index(True) for step in range(6)] == [1, 2, 0, 1, 2, 0]
    assert all(sum(rank[step] for rank in late) == 1 for step in range(6))


def gathered(run: Run) -> int:
    return sum(size for kind, _, _, size in run.comm.carried if kind == "all_gather")


def test_small_units_are_many_and_move_the_same(pair):
    small, right = pair("units_too_small")
    assert len(small.comm.launches("all_gather")) > 3 * len(right.comm.launches("all_gather"))
    assert gathered(small) == pytest.approx(gathered(right), rel=0.3)  # padding; one block is kept


def test_without_prefetch_every_gather_is_waited_for_at_once(pair):
    def waited_at_once(run: Run) -> int:
        gathers = [event for event in run.comm.events if "all_gather" in event or "sleep" in event]
        return sum(
            then == first.replace("launch", "wait") for first, then in pairwise(gathers) if "launch" in first
        )

    run, right = pair("no_prefetch")
    assert waited_at_once(run) == 2 * len(UNITS) - 1
    assert waited_at_once(right) < len(UNITS)


def test_the_host_takes_its_time_before_each_block(pair):
    run, _ = pair("cpu_bound_launch")
    sleeps = [f"{1e3 * seconds:g}" for seconds in run.sleeps]
    assert sleeps == ["15", "6"] * len(BLOCKS) + ["15", "12"] * len(BLOCKS)


def test_blocking_leaves_nothing_in_flight_when_a_block_begins(pair):
    def items(run: Run) -> int:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            run.steps()
        return sum(event.name == "aten::_local_scalar_dense" for event in profiled.events())

    blocked, right = pair("blocking_sync")
    assert blocked.in_flight == [0] * (2 * len(BLOCKS))
    assert max(right.in_flight) > 0
    assert items(blocked) >= items(right) + 2 * len(BLOCKS)


def test_the_loader_stalls_before_each_micro_batch_where_a_profiler_sees_it(start):
    run = start(planted("data_loader", zero__micro_batches=2))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run.steps()
    assert [seconds for seconds in run.sleeps if seconds == 0.06] == [0.06] * 2
    assert run.sleeps[0] == 0.06
    loads = [event for event in profiled.events() if event.name.startswith("enumerate(DataLoader)#")]
    assert len(loads) == 2
    plain = start(healthy("data_loader", zero__micro_batches=2))
    plain.steps()
    assert 0.06 not in plain.sleeps


def test_uneven_sequences_give_rank_0_four_times_the_compute(start):
    work = []
    for rank in (0, 1):
        run = start(planted("uneven_shapes"), rank=rank)
        run.steps()
        work.append(sum(run.sleeps))
    assert work[0] == pytest.approx(4 * work[1])


def test_gradients_travel_in_float32_beside_bfloat16_parameters(pair):
    types = {(kind, dtype) for kind, _, dtype, _ in pair("fp32_reduce")[0].comm.carried}
    assert types == {("all_gather", torch.bfloat16), ("reduce_scatter", torch.float32)}


@pytest.mark.parametrize(
    ("cause", "gathers", "healthy_gathers", "reductions"),
    [
        ("accumulation_syncs", None, None, 4),
        ("accumulation_regathers", [8, 8, 8], None, 1),
        ("needless_reshard_after_forward", [2, 2, 1], None, None),
        ("last_unit_regathered", [2, 2, 2], None, None),
        ("checkpoint_regathers", [3, 3, 2], [2, 2, 1], None),  # the last one is kept for its backward
    ],
)
def test_blocks_are_gathered_and_reduced_as_often_as_planted(
    pair, cause, gathers, healthy_gathers, reductions
):
    run, right = pair(cause)
    assert gathers in (None, [run.gathers(unit) for unit in BLOCKS])
    assert healthy_gathers in (None, [right.gathers(unit) for unit in BLOCKS])
    assert reductions is None or {run.reductions(unit) for unit in UNITS} == {reductions}


def test_the_step_waits_for_the_gather_of_parameters(pair):
    run, right = pair("unhidden_optimizer_gather")
    assert run.comm.events[-len(UNITS) :] == [f"wait all_gather {unit}" for unit in UNITS]
    assert right.comm.events[-1].startswith("launch all_gather")


def test_each_checkpoint_is_copied_out_and_in_before_the_block_goes_on(start):
    run = start(planted("offload_on_critical_path"))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run.steps()
    forward, recompute = ["10", "12"], ["24", "10", "12"]
    sleeps = [f"{1e3 * seconds:g}" for seconds in run.sleeps]
    assert sleeps == forward * len(BLOCKS) + recompute * len(BLOCKS)
    copies = [event.name for event in profiled.events() if event.name.startswith("zero::copy")]
    assert Counter(name.split()[2] for name in copies) == {f"unit={unit}": 2 for unit in BLOCKS}
    assert run.config.activations.host
