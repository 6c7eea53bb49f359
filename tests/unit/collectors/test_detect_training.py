"""What is detected of a model: only what is sure; the rest stays unknown."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from zprof.analysis.zero_formulas import compute_expected_volume, compute_state_formula
from zprof.collectors.training import detect_training


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_plain_model_is_known() -> None:
    facts = detect_training(model())
    assert (facts.engine, facts.parameters, facts.shard_ranks) == ("pytorch", 40, 1)
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.communication_bytes) == (4, 4, 4)


def test_a_frozen_layer_has_no_law() -> None:
    """It is held but not communicated, and has no gradient: neither count would be right for both."""
    frozen = model()
    frozen[0].requires_grad_(False)
    facts = detect_training(frozen)
    assert facts.parameters is None
    assert facts.parameter_bytes == 4
    assert compute_expected_volume(replace(facts, shard_ranks=2)) is None


def test_mixed_element_sizes_stay_unknown() -> None:
    mixed = model()
    mixed[1].to(torch.bfloat16)
    facts = detect_training(mixed)
    assert facts.parameters == 40
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.communication_bytes) == (None, None, None)


def test_parameters_without_a_shape_yet_stay_unknown() -> None:
    facts = detect_training(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)))
    assert (facts.engine, facts.parameters, facts.shard_ranks) == ("pytorch", None, 1)


def test_a_mesh_of_two_dimensions_has_no_number_of_shards() -> None:
    """HSDP shards over one dimension and replicates over the other."""

    class Mesh:
        ndim = 2

        def size(self) -> int:
            return 4

    hybrid = model()
    for parameter in hybrid.parameters():
        parameter.device_mesh = Mesh()
    assert detect_training(hybrid).shard_ranks is None


def stepped(trained: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    trained(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "state_bytes", "counters"),
    [
        (torch.optim.AdamW, 8, 4),
        (partial(torch.optim.AdamW, amsgrad=True), 12, 4),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 4, 0),
        (partial(torch.optim.SGD, lr=0.1), 0, 0),
        (torch.optim.Adagrad, 4, 4),
    ],
)
def test_optimizer_state_is_known_after_the_first_step(
    make: Callable[..., torch.optim.Optimizer], state_bytes: int, counters: int
) -> None:
    trained = model()
    facts = detect_training(trained, stepped(trained, make(trained.parameters())))
    assert (facts.optimizer_state_bytes, facts.step_counters) == (state_bytes, counters)


def test_before_its_first_step_an_optimizers_state_is_unknown() -> None:
    trained = model()
    assert detect_training(trained, torch.optim.AdamW(trained.parameters())).optimizer_state_bytes is None


def test_a_parameter_of_one_element_is_no_step_counter() -> None:
    trained = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    facts = detect_training(trained, stepped(trained, torch.optim.AdamW(trained.parameters())))
    assert (facts.optimizer_state_bytes, facts.step_counters) == (8, 4)


def test_states_of_different_sizes_have_no_single_one() -> None:
    trained = model()
    optimizers = [
        torch.optim.AdamW(trained[0].parameters()),
        torch.optim.SGD(trained[1].parameters(), 0.1, 0.9),
    ]
    for optimizer in optimizers:
        stepped(trained, optimizer)
    assert detect_training(trained, optimizers).optimizer_state_bytes is None


def test_an_optimizer_of_a_part_does_not_speak_for_the_whole() -> None:
    trained = model()
    facts = detect_training(trained, stepped(trained, torch.optim.AdamW(trained[0].parameters())))
    assert facts.optimizer_state_bytes is None


def test_masters_count_as_state() -> None:
    """Mixed precision by hand: 16-bit parameters, fp32 copies with two moments."""
    trained = model().to(torch.bfloat16)
    masters = [parameter.detach().float() for parameter in trained.parameters()]
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer = torch.optim.AdamW(masters)
    optimizer.step()
    facts = detect_training(trained, optimizer)
    assert (facts.parameter_bytes, facts.optimizer_state_bytes) == (2, 12)


def test_a_single_process_replicates_nothing_and_shards_nothing() -> None:
    trained = model()
    facts = detect_training(trained, stepped(trained, torch.optim.AdamW(trained.parameters())))
    law = compute_state_formula(facts)
    assert law is not None
    assert (facts.stage, law.parameters, law.gradients, law.optimizer_state) == (0, 160, 160, 320)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module, hooks: list[object]) -> None:
        super().__init__()
        self.module, self._comm_hooks = module, hooks


class FSDPModule(nn.Sequential):
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None

    def _get_fsdp_state(self) -> object:
        return type("State", (), {"_mp_policy": self})


def test_what_is_cast_for_the_wire_is_not_taken_for_the_parameters_size() -> None:
    assert detect_training(DistributedDataParallel(model(), [])).communication_bytes == 4
    assert detect_training(DistributedDataParallel(model(), [object()])).communication_bytes is None
    sharded = FSDPModule(nn.Linear(4, 4))
    assert detect_training(sharded).communication_bytes == 4
    sharded.param_dtype = torch.bfloat16
    assert detect_training(sharded).communication_bytes == 2
    sharded.reduce_dtype = torch.float32
    facts = detect_training(sharded)
    assert (facts.communication_bytes, facts.reduction_bytes) == (2, 4), "gathered in 2 bytes, reduced in 4"
    mixed = nn.Sequential(sharded, FSDPModule(nn.Linear(4, 4)))
    facts = detect_training(mixed)
    assert (facts.communication_bytes, facts.reduction_bytes) == (None, None), "units of different sizes"
