"""What was made cheap stays right: the same tenants, the program's own numbers, compiled code left alone."""

from collections import Counter

import pytest
import torch
from memory_window import Window, record, small_model, train_step
from torch import nn

from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.schedule import MemoryMode
from zprof.model.tenants import Tenant

both = pytest.mark.parametrize("mode", list(MemoryMode))


def recorded_steps() -> Window:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    train_step(model, optimizer)
    return record(lambda: train_step(model, optimizer), model, optimizer)


def test_the_tenants_of_a_small_model_are_what_they_were() -> None:
    """Figures of the collector as it was before it was made faster, for torch's CPU kernels."""
    window = recorded_steps()
    peak = window.lives.peak()
    tenants = {
        Tenant.PARAMETERS: 66_816,
        Tenant.OPTIMIZER_STATE: 133_656,
        Tenant.GRADIENTS: 66_816,
        Tenant.COMMUNICATION_BUFFERS: 0,
        Tenant.ACTIVATIONS: 8_192,
        Tenant.TEMPORARY_BUFFERS: 66_060,
    }
    assert peak.tenants == tenants
    assert Counter(zip(window.role["tenant"], window.role["sub"], strict=True)) == {
        ("optimizer_state", "state"): 18,
        ("optimizer_state", "master"): 6,
        ("activations", "saved"): 10,
        ("parameters", "weight"): 6,
        ("gradients", "unreduced"): 6,
        ("gradients", "grad"): 6,
    }
    inside = window.alloc[(window.alloc["source"] == "storage") & ~window.alloc["before_window"]]
    assert (len(inside), int(inside["bytes"].sum())) == (35, 339_976)
    assert Counter(inside["phase"]) == {"backward": 13, "optimizer": 12, "forward": 9, "other": 1}
    assert inside["freed_ns"].notna().all()


def test_every_operator_that_allocates_has_its_storage_and_its_death() -> None:
    """One life for each output, ended when it was dropped: nothing was skipped for speed."""
    count = 100

    def body() -> None:
        for _ in range(count):
            x = torch.zeros(64)
            x.view(8, 8).t().add_(1)  # views and in-place operators make none
            del x

    window = record(body)
    born = window.births("aten.zeros.default")
    assert len(born) == count
    assert born["freed_ns"].notna().all()
    inside = window.alloc[(window.alloc["source"] == "storage") & ~window.alloc["before_window"]]
    assert len(inside) == count


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_operator_that_resizes_begins_a_new_life() -> None:
    x = torch.zeros(64)
    window = record(lambda: [x.resize_(256), torch.add(torch.ones(99), 1, out=x)].clear())
    sizes = list(
        window.alloc.loc[~window.alloc["before_window"] & (window.alloc["source"] == "storage"), "bytes"]
    )
    assert sizes == [1024, 396]


@both
def test_a_parameter_swapped_between_forward_and_backward_is_the_programs_to_swap(mode: MemoryMode) -> None:
    """Autograd keeps the parameter, not its bytes: an engine may let them go and bring others."""

    def gradient(collector: MemoryCollector | None) -> torch.Tensor:
        weight, x = nn.Parameter(torch.full((4, 4), 2.0)), torch.ones(4, 4, requires_grad=True)

        def body() -> None:
            loss = (x @ weight).sum()
            weight.data = torch.full((4, 4), 3.0)
            loss.backward()

        if collector is None:
            body()
        else:
            record(body, collector=collector)
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(None), gradient(MemoryCollector(None, None, mode)))


@both
def test_a_graph_that_is_dropped_frees_what_it_saved(mode: MemoryMode) -> None:
    """No pack hook may tie a cycle: here the graph is never run backward."""

    def body() -> None:
        weight = torch.ones(1000, requires_grad=True)
        loss = (weight.exp().exp() * weight).sum()
        assert loss.requires_grad

    window = record(body, collector=MemoryCollector(None, None, mode))
    inside = window.alloc[~window.alloc["before_window"] & (window.alloc["source"] == "storage")]
    assert inside["freed_ns"].notna().all()
    assert len(inside) > 0


def run_eagerly(x: torch.Tensor) -> torch.Tensor:
    """The compiler gives a loop with a break in it up, and watches the functions that it calls."""
    for _ in range(3):
        torch._dynamo.graph_break()
        x = x.sin()
    return x


def frames_compiled() -> int:
    """How many functions the compiler looked at while it ran the one above."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    function = torch.compile(run_eagerly, backend="eager")
    assert torch.equal(function(torch.ones(4)), torch.ones(4).sin().sin().sin())
    return int(torch._dynamo.utils.counters["frames"]["total"])


def test_the_compiler_does_not_look_at_our_own_functions() -> None:
    alone = frames_compiled()
    looked_at: list[int] = []
    window = record(lambda: looked_at.append(frames_compiled()))
    assert window.gaps == []
    assert len(window.births("aten.sin.default")) == 6  # run as it stands, operator after operator
    assert looked_at == [alone]
