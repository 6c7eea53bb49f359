"""Every plant does what its sentence says, seen without a clock: launches, bytes, order, memory."""

import gc
from collections import Counter
from itertools import pairwise
from operator import attrgetter

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from training_helpers import Run, healthy, planted, started

from zprof.reference_engine.comm.collective import Collective, Kind
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import Keep
from zprof.reference_engine.program.plants import PLANTS, find_plant, format_plants
from zprof.reference_engine.program.train_config import TrainConfig, replace_fields

#: The names of causes in a report.
CAUSES = """
    straggler_rank rotating_straggler latency_bound_collectives units_too_small single_unit no_prefetch
    rate_limited_prefetch cpu_bound_launch allocator_retries comm_slows_compute compute_blocks_comm
    low_bus_bandwidth sharding_spans_nodes fp32_reduce fp32_gather accumulation_syncs accumulation_regathers
    needless_reshard_after_forward last_unit_regathered checkpoint_regathers offload_on_critical_path
    blocking_sync data_loader unhidden_optimizer_gather copy_overhead uneven_shapes lost_compute_efficiency
    measurement_artifact buffers_dominate fragmentation activations_dominate logits_dominate replicated_state
    wrong_stage retained_gradients init_spike outside_allocator
"""
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")
UNITS = ("root", *BLOCKS)


@pytest.fixture
def start(monkeypatch):
    def run(config: TrainConfig, **where: int) -> Run:
        return started(monkeypatch, config, **where)

    return run


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.cause)
def test_a_plant_has_a_cause_of_the_report_and_changes_a_default_run(plant):
    assert plant.cause in CAUSES.split()
    config = plant.apply(TrainConfig())
    assert config.plant == plant.cause
    assert config != replace_fields(TrainConfig(), {"plant": plant.cause})
    assert plant.is_modelled == (config.link is not None) == (config.compute is not None)
    assert f"{plant.cause} " in format_plants()


def test_no_cause_is_planted_twice():
    assert max(Counter(plant.cause for plant in PLANTS).values()) == 1


def test_an_unknown_plant_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no plant 'stragler'; near: straggler_rank"):
        find_plant("stragler")
    with pytest.raises(ValueError, match=r"no plant 'qqq'; --plant list shows them"):
        find_plant("qqq")


def test_what_is_asked_for_beside_a_plant_stays_but_may_not_contradict_it():
    config = planted("no_prefetch", gpt__layers=7, link__latency_s=1.0)
    assert (config.gpt.layers, config.link.latency_s, config.zero.forward_prefetch) == (7, 1.0, 0)
    assert planted("no_prefetch", zero__forward_prefetch=0).zero.forward_prefetch == 0
    with pytest.raises(ValueError, match=r"plant no_prefetch sets zero.forward_prefetch to 0"):
        planted("no_prefetch", zero__forward_prefetch=1)
    with pytest.raises(ValueError, match=r"plant no_prefetch needs zero.stage 3; it is 2"):
        planted("no_prefetch", zero__stage=2)
    with pytest.raises(ValueError, match=r"needs zero.micro_batches of 2 or more; it is 1"):
        planted("accumulation_syncs", zero__micro_batches=1)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.cause)
def test_a_cured_run_is_the_planted_one_without_its_cause(plant):
    sick, well = plant.apply(TrainConfig()), plant.cured(TrainConfig())
    assert well.plant is None
    assert well != replace_fields(sick, {"plant": None})
    for part in ("gpt", "batch", "activations.checkpoint", "zero.micro_batches"):
        if not any(name.startswith(part) for name in plant.change):
            assert attrgetter(part)(well) == attrgetter(part)(sick)


def test_the_cures_take_away_what_the_base_brings_or_the_default_has():
    assert find_plant("straggler_rank").cured(TrainConfig()).compute.straggler_s == 0
    assert find_plant("rotating_straggler").cured(TrainConfig()).compute.straggler_s == 0
    assert find_plant("accumulation_syncs").cured(TrainConfig()).zero.reduce_each_micro_batch is False
    assert find_plant("last_unit_regathered").cured(TrainConfig()).zero.keep_after_forward == "last"
    assert find_plant("accumulation_regathers").cured(TrainConfig()).zero.stage == 2
    assert find_plant("needless_reshard_after_forward").cured(TrainConfig()).zero.keep_after_forward == "all"


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


def test_the_host_of_the_rotating_straggler_stalls_where_the_other_plant_computes_longer(start):
    longest = {}
    for cause in ("rotating_straggler", "straggler_rank"):
        run = start(planted(cause), rank=1)
        run.steps(2)
        longest[cause] = max(run.sleeps)
    assert longest == pytest.approx({"rotating_straggler": 0.040, "straggler_rank": 0.040 + 0.012})


def test_uneven_sequences_are_cured_by_as_many_tokens_dealt_out_evenly(start):
    plant = find_plant("uneven_shapes")
    sick, well = plant.apply(TrainConfig()), plant.cured(TrainConfig())
    assert well.tokens_per_step(2) == sick.tokens_per_step(2)
    assert well.length(0, 2) == well.length(1, 2) < sick.length(0, 2)


def seconds(link: LinkModel | None, size: int) -> float:
    assert link is not None
    collective = Collective(
        kind=Kind.ALL_GATHER, group="0", sequence=0, unit="u", bytes=size, dtype="float32"
    )
    return link.seconds(collective, 2)


def test_a_slow_rank_makes_every_transfer_five_times_as_long():
    slow, right = planted("low_bus_bandwidth").link, healthy("low_bus_bandwidth").link
    assert seconds(slow, 1 << 20) == pytest.approx(5 * seconds(right, 1 << 20))


def test_latency_is_most_of_every_collective():
    config = find_plant("latency_bound_collectives").apply(TrainConfig())
    block_bytes = 4 * 12 * config.gpt.hidden**2
    assert config.link.latency_s > 0.5 * seconds(config.link, block_bytes)
    right = replace_fields(config, {"link.latency_s": 50e-6}).link
    assert right.latency_s < 0.1 * seconds(right, block_bytes)


def test_small_units_are_many_and_move_the_same(start):
    small, right = (start(make("units_too_small")) for make in (planted, healthy))
    for run in (small, right):
        run.steps()
    assert Counter(right.comm.launches("all_gather")) == dict.fromkeys(UNITS, 2) | {"blocks.2": 1}
    assert Counter(small.comm.launches("all_gather"))["blocks.1.attention.projection"] == 2
    assert len(small.comm.launches("all_gather")) > 3 * len(right.comm.launches("all_gather"))
    assert gathered(small) == pytest.approx(gathered(right), rel=0.3)  # padding; one block is kept


def gathered(run: Run) -> int:
    return sum(size for kind, _, _, size in run.comm.carried if kind == "all_gather")


def test_a_single_unit_is_gathered_before_any_compute(start):
    run = start(planted("single_unit"))
    run.steps()
    assert run.comm.launches("all_gather") == ["root"]  # the last unit, which is kept
    assert run.comm.events[:3] == ["launch all_gather root", "wait all_gather root", "sleep 12"]


def test_without_prefetch_every_gather_is_waited_for_at_once(start):
    def waited_at_once(run: Run) -> int:
        run.steps()
        gathers = [event for event in run.comm.events if "all_gather" in event or "sleep" in event]
        return sum(
            then == first.replace("launch", "wait") for first, then in pairwise(gathers) if "launch" in first
        )

    assert waited_at_once(start(planted("no_prefetch"))) == 2 * len(UNITS) - 1
    assert waited_at_once(start(healthy("no_prefetch"))) < len(UNITS)


def test_the_host_takes_its_time_before_each_block(start):
    run = start(planted("cpu_bound_launch"))
    run.steps()
    sleeps = [f"{1e3 * seconds:g}" for seconds in run.sleeps]
    assert sleeps == ["15", "6"] * len(BLOCKS) + ["15", "12"] * len(BLOCKS)


def test_blocking_leaves_nothing_in_flight_when_a_block_begins(start):
    blocked, right = (start(make("blocking_sync")) for make in (planted, healthy))
    for run in (blocked, right):
        run.steps()
    assert blocked.in_flight == [0] * (2 * len(BLOCKS))
    assert max(right.in_flight) > 0
    assert items(blocked) >= items(right) + 2 * len(BLOCKS)


def items(run: Run) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run.steps()
    return sum(event.name == "aten::_local_scalar_dense" for event in profiled.events())


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


def test_gradients_travel_in_float32_beside_bfloat16_parameters(start):
    run = start(planted("fp32_reduce"))
    run.steps()
    types = {(kind, dtype) for kind, _, dtype, _ in run.comm.carried}
    assert types == {("all_gather", torch.bfloat16), ("reduce_scatter", torch.float32)}


def test_accumulation_syncs_reduce_every_micro_batch(start):
    run = start(planted("accumulation_syncs"))
    run.steps()
    assert [run.reductions(unit) for unit in UNITS] == [4] * len(UNITS)
    calm = start(replace_fields(run.config, {"zero.reduce_each_micro_batch": False}))
    calm.steps()
    assert [calm.reductions(unit) for unit in UNITS] == [1] * len(UNITS)


def test_accumulation_regathers_twice_a_micro_batch_and_reduces_once(start):
    run = start(planted("accumulation_regathers"))
    run.steps()
    assert [run.gathers(unit) for unit in UNITS] == [2 * 4] * len(UNITS)
    assert [run.reductions(unit) for unit in UNITS] == [1] * len(UNITS)


@pytest.mark.parametrize(
    ("cause", "twice", "keep", "saved"),
    [
        ("needless_reshard_after_forward", UNITS[:-1], Keep.ALL, BLOCKS),
        ("last_unit_regathered", UNITS, Keep.LAST, BLOCKS[-1:]),
    ],
)
def test_what_is_released_after_the_forward_is_gathered_twice(start, cause, twice, keep, saved):
    run = start(planted(cause))
    run.steps()
    assert [unit for unit in UNITS if run.gathers(unit) == 2] == list(twice)
    kept = start(replace_fields(run.config, {"zero.keep_after_forward": keep}))
    kept.steps()
    assert [unit for unit in BLOCKS if kept.gathers(unit) == 1] == list(saved)


def test_the_last_unit_comes_back_without_a_block_between(start):
    run = start(planted("last_unit_regathered"))
    run.steps()
    gathers = [name for name in run.comm.launches("all_gather") if name != "root"]
    assert gathers[2] == gathers[3] == "blocks.2"


def test_the_recomputation_gathers_every_block_a_third_time(start):
    run, right = (start(make("checkpoint_regathers")) for make in (planted, healthy))
    assert run.steps() == right.steps()
    assert [run.gathers(unit) for unit in BLOCKS] == [3, 3, 2]  # the last one is kept for its backward
    assert [right.gathers(unit) for unit in BLOCKS] == [2, 2, 1]


def test_the_step_waits_for_the_gather_of_parameters(start):
    run, right = (start(make("unhidden_optimizer_gather")) for make in (planted, healthy))
    for one in (run, right):
        one.steps()
    assert run.comm.events[-len(UNITS) :] == [f"wait all_gather {unit}" for unit in UNITS]
    assert right.comm.in_flight() == 0  # those of the last step were waited for in this one
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


def test_whole_gradients_are_kept_between_micro_batches(start):
    def kept_bytes(config: TrainConfig) -> int:
        run = start(config)
        run.built.optimizer.zero_grad()
        tokens = torch.zeros(1, config.gpt.context, dtype=torch.int64)
        run.built.model(tokens, tokens).backward()
        grads = [parameter.grad for parameter in run.built.model.module.parameters()]
        return sum(grad.nbytes for grad in grads if grad is not None)

    config = planted("retained_gradients")
    whole = 4 * sum(unit.layout.numel for unit in start(config).built.model.units)
    assert kept_bytes(config) == whole
    assert kept_bytes(healthy("retained_gradients")) == 0


def test_constant_buffers_are_larger_than_all_else(start):
    run = start(planted("buffers_dominate"))
    run.steps()
    elements = run.built.model.facts.constant_buffers
    alive = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) is torch.Tensor and tensor.numel() == elements
    }
    assert sum(alive.values()) == 2 * 4 * elements
    facts = find_plant("buffers_dominate").apply(TrainConfig()).gpt
    model = 12 * facts.layers * facts.hidden**2 + 2 * facts.vocabulary * facts.hidden
    assert elements > 4 * model


def saved_bytes(run: Run) -> Counter[tuple[int, ...]]:
    """Bytes that autograd keeps of one forward, by shape; each memory once, parameters left out."""
    owned = {parameter.untyped_storage()._cdata for parameter in run.built.model.parameters()}
    sizes: dict[int, tuple[tuple[int, ...], int]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            sizes[storage.data_ptr()] = (tuple(tensor.shape), storage.nbytes())
        return tensor

    tokens = torch.zeros(run.config.batch // 2, run.config.gpt.context, dtype=torch.int64)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = run.built.model(tokens, tokens)
    total: Counter[tuple[int, ...]] = Counter()
    for shape, size in sizes.values():
        total[shape] += size
    del loss
    return total


def state_bytes(run: Run) -> int:
    """Parameters, gradients and AdamW of this rank by the law, float32."""
    facts = run.built.model.facts
    whole = facts.parameters + facts.padding_elements
    return 16 * whole // (2 if facts.stage == 3 else 1)


def test_activations_are_more_than_all_states(start):
    run = start(find_plant("activations_dominate").apply(TrainConfig()))
    assert sum(saved_bytes(run).values()) > 2 * state_bytes(run)


def test_logits_are_more_than_all_else(start):
    run = start(find_plant("logits_dominate").apply(TrainConfig()))
    saved = saved_bytes(run)
    logits = sum(size for shape, size in saved.items() if 1 << 14 in shape)
    assert logits > 0.9 * sum(saved.values())
    assert logits > state_bytes(run)


def test_replicated_state_is_more_than_activations_and_sharding_would_halve_it(start):
    run = start(find_plant("replicated_state").apply(TrainConfig()))
    assert run.built.model.facts.stage == 0
    state = [tensor for entry in run.built.optimizer.state.values() for tensor in entry.values()]
    moments = sum(tensor.nbytes for tensor in state)
    assert moments >= 8 * run.built.model.facts.parameters
    assert state_bytes(run) > 5 * sum(saved_bytes(run).values())
