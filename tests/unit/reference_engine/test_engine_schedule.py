"""Which collectives are launched, in which order, and how many units are in memory at once."""

import pytest
import torch
from engine_helpers import BLOCKS, engine, loss_of, train_step
from fake_comm import FakeComm
from pitfall_models import Layers, in_engine, train
from torch import nn
from torch.profiler import ProfilerActivity, profile

from zprof.reference_engine import ZeroConfig, zero

FORWARD = ["root", *BLOCKS]
BACKWARD = ["root", *reversed(BLOCKS)]
REDUCED = [*reversed(BLOCKS), "root"]
KINDS = {0: "all_reduce", 1: "reduce_scatter", 2: "reduce_scatter", 3: "reduce_scatter"}
GATHERS = {0: [], 1: FORWARD, 2: FORWARD, 3: FORWARD + BACKWARD}


@pytest.mark.parametrize("stage", range(4))
def test_a_step_makes_the_collectives_of_its_stage_and_waits_for_each(stage):
    model, optimizer, comm = engine(4, stage=stage)
    events = []
    for step in range(3):
        train_step(model, optimizer, step)
        assert comm.launches("all_gather") == GATHERS[stage]
        for kind in ("all_reduce", "reduce_scatter"):
            assert comm.launches(kind) == (REDUCED if kind == KINDS[stage] else [])
        events += comm.take_events()
    model.synchronize()
    events += comm.take_events()
    launched = [event.removeprefix("launch") for event in events if event.startswith("launch")]
    assert sorted(launched) == sorted(
        event.removeprefix("wait") for event in events if event.startswith("wait")
    )


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_prefetch_launches_that_many_units_ahead_and_holds_no_more(prefetch):
    model, optimizer, comm = engine(4, stage=3, forward_prefetch=prefetch, backward_prefetch=prefetch)
    counts: list[int] = []

    def count(*_: object) -> None:
        counts.append(sum(unit.full.untyped_storage().nbytes() > 0 for unit in model.units))

    for block in model.module.blocks:
        block.register_forward_pre_hook(count)
        block.expand.weight.register_hook(count)
    train_step(model, optimizer)
    comm.take_events()
    train_step(model, optimizer)
    assert max(counts) == 2 + prefetch  # the root, the one in use and the prefetched
    events = [event for event in comm.take_events() if "all_gather" in event]
    for order, events_of_pass in ((FORWARD, events[:8]), (BACKWARD, events[8:])):
        for position, unit in enumerate(order):
            before_wait = events_of_pass[: events_of_pass.index(f"wait all_gather {unit}")]
            launched = sum(event.startswith("launch") for event in before_wait)
            assert launched == min(position + 1 + prefetch, len(order))


@pytest.mark.parametrize("stage", range(4))
def test_reductions_are_launched_beside_the_backward_or_waited_for_at_once(stage):
    for overlap in (True, False):
        model, optimizer, comm = engine(4, stage=stage, reduce_buckets=9, overlap_reduce=overlap)
        during: list[str] = []
        model.module.blocks[0].expand.weight.register_hook(lambda _, c=comm, d=during: d.extend(c.events))
        train_step(model, optimizer)
        at_once = [f"{what} {KINDS[stage]} {unit}" for unit in REDUCED for what in ("launch", "wait")]
        launched = [event for event in at_once[:4] if event.startswith("launch")]
        assert [event for event in during if KINDS[stage] in event] == (launched if overlap else at_once[:4])


@pytest.mark.parametrize("stage", [2, 3])
def test_no_more_reductions_are_in_flight_than_allowed(stage):
    model, optimizer, comm = engine(4, stage=stage, reduce_buckets=1)
    train_step(model, optimizer)
    in_flight = [0]
    for event in comm.take_events():
        if "reduce_scatter" in event:
            in_flight.append(in_flight[-1] + (1 if event.startswith("launch") else -1))
    # One waits for its last gradient (the root), so its own launch may stand beside the one in flight.
    assert max(in_flight) <= 2


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("stage", [1, 2])
def test_the_gather_after_a_step_is_waited_for_by_the_next_forward_or_by_the_step(stage, overlap):
    model, optimizer, comm = engine(4, stage=stage, overlap_gather=overlap)
    train_step(model, optimizer)
    waits = [f"wait all_gather {unit}" for unit in FORWARD]
    step = [event for event in comm.take_events() if event.startswith("wait all_gather")]
    loss_of(model)
    assert (step, comm.take_events()) == (([], waits) if overlap else (waits, []))


class OptionalLayer(nn.Module):
    """May leave a parameter out."""

    def __init__(self, _: int = 0) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 4)
        self.used = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.before if self.used else x))


@pytest.mark.parametrize(("stage", "prefetch"), [(0, 0), (1, 1), (2, 0), (3, 0), (3, 1)])
def test_a_rank_that_leaves_a_parameter_out_launches_what_the_others_launch(stage, prefetch):
    launches = []
    for left_out in ((), (1,), (0, 2, 3)):
        module = Layers(OptionalLayer, count=4)
        for index in left_out:
            module.layers[index].used = False
        settings = {"forward_prefetch": prefetch, "backward_prefetch": prefetch}
        model, optimizer, comm = in_engine(module, stage, 2, **settings)
        for _ in range(2):
            train(model, optimizer)
        launches.append([event for event in comm.take_events() if event.startswith("launch")])
    assert launches[0] == launches[1] == launches[2]


class Switching(nn.Module):
    """Calls its layers in an order that can be turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.order = [0, 1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.order:
            x = self.layers[index](x)
        return x.sum()


def test_a_changed_order_is_gathered_on_demand_marked_once_and_learnt():
    module = Switching()
    model, optimizer = zero(module, ZeroConfig(stage=3), FakeComm())

    def misses() -> list[str]:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            optimizer.zero_grad()
            model(torch.ones(1, 3)).backward()
            optimizer.step()
        return [event.name for event in profiled.events() if event.name.startswith("zero::prefetch_miss")]

    assert misses() == misses() == []
    module.order = [0, 2, 1]
    assert misses() == [
        "zero::prefetch_miss unit=layers.2 expected=layers.1",
        "zero::prefetch_miss unit=layers.1 expected=layers.2",
    ]
    assert misses() == []
