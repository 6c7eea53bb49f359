"""The facts that are detected of a model and its optimizers: what is not certain stays unknown."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)

from zprof.collectors.training import detect_training

SGD, AdamW = torch.optim.SGD, torch.optim.AdamW


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def with_frozen_layer() -> nn.Module:
    frozen = model()
    frozen[0].requires_grad_(False)
    return frozen


def with_two_dtypes() -> nn.Module:
    mixed = model()
    mixed[1].to(torch.bfloat16)
    return mixed


@pytest.mark.parametrize(
    ("make", "parameters", "element_bytes"),
    [
        (model, 40, 4),
        (with_frozen_layer, None, 4),
        (with_two_dtypes, 40, None),
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), None, 4),
    ],
    ids=["plain", "frozen", "two dtypes", "lazy"],
)
def test_parameters(make: Callable[[], nn.Module], parameters: int | None, element_bytes: int | None) -> None:
    facts = detect_training(make())
    assert (facts.engine, facts.stage, facts.shard_ranks) == ("pytorch", 0, 1)
    assert (facts.parameters, facts.parameter_bytes, facts.gradient_bytes) == (
        parameters,
        element_bytes,
        element_bytes,
    )
    assert facts.communication_bytes == element_bytes


def stepped(trained: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    trained(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "state_bytes", "counters"),
    [
        (AdamW, 8, 4),
        (partial(AdamW, amsgrad=True), 12, 4),
        (partial(SGD, lr=0.1, momentum=0.9), 4, 0),
        (partial(SGD, lr=0.1), 0, 0),
        (torch.optim.Adagrad, 4, 4),
    ],
)
def test_optimizer_state_after_the_first_step(
    make: Callable[..., torch.optim.Optimizer], state_bytes: int, counters: int
) -> None:
    trained = model()
    facts = detect_training(trained, stepped(trained, make(trained.parameters())))
    assert (facts.optimizer_state_bytes, facts.step_counters) == (state_bytes, counters)


@pytest.mark.parametrize(
    "make",
    [
        lambda trained: [AdamW(trained.parameters())],
        lambda trained: [stepped(trained, AdamW(trained[0].parameters()))],
        lambda trained: [
            stepped(trained, AdamW(trained[0].parameters())),
            stepped(trained, SGD(trained[1].parameters(), 0.1, 0.9)),
        ],
    ],
    ids=["before the first step", "of a part", "of different sizes"],
)
def test_optimizer_state_that_is_not_known_of_all_parameters(make: Callable[..., object]) -> None:
    trained = model()
    assert detect_training(trained, make(trained)).optimizer_state_bytes is None


def test_masters_count_as_state() -> None:
    trained = model().to(torch.bfloat16)
    masters = [parameter.detach().float() for parameter in trained.parameters()]
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer = AdamW(masters)
    optimizer.step()
    facts = detect_training(trained, optimizer)
    assert (facts.parameter_bytes, facts.optimizer_state_bytes) == (2, 12)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module, hooks: list[object]) -> None:
        super().__init__()
        self.module, self._comm_hooks = module, hooks


@pytest.mark.parametrize(("hooks", "size"), [([], 4), ([object()], None)], ids=["plain", "with a hook"])
def test_bytes_on_the_wire_of_ddp(hooks: list[object], size: int | None) -> None:
    facts = detect_training(DistributedDataParallel(model(), hooks))
    assert (facts.stage, facts.communication_bytes, facts.reduction_bytes) == (0, size, size)


@pytest.fixture
def single_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def fsdp2(*policies: MixedPrecisionPolicy, reshard: bool | None = None) -> nn.Module:
    """Two units, the model itself is none."""
    wrapped = model()
    for layer, policy in zip(wrapped, policies, strict=True):
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    return wrapped


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
SUMS = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FULL = MixedPrecisionPolicy()


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize(
    ("policies", "sizes"),
    [((FULL, FULL), (4, 4)), ((HALF, HALF), (2, 2)), ((SUMS, SUMS), (2, 4)), ((HALF, FULL), (None, None))],
    ids=["plain", "cast", "cast, reduced in full", "units of two kinds"],
)
def test_bytes_on_the_wire_of_fsdp2(
    policies: tuple[MixedPrecisionPolicy, MixedPrecisionPolicy], sizes: tuple[int | None, int | None]
) -> None:
    facts = detect_training(fsdp2(*policies))
    assert (facts.engine, facts.stage, facts.parameters, facts.shard_ranks) == ("fsdp2", 3, 40, 1)
    assert (facts.communication_bytes, facts.reduction_bytes) == sizes


@pytest.mark.usefixtures("single_rank")
def test_fsdp2_that_keeps_parameters_gathers_them_once_per_micro_batch() -> None:
    assert detect_training(fsdp2(FULL, FULL)).gathered_elements is None  # as the formula of stage 3
    facts = detect_training(fsdp2(FULL, FULL, reshard=False), micro_batches=3)
    assert (facts.gathered_elements, facts.reduced_elements) == (3 * 40, 3 * 40)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.parametrize(("strategy", "stage"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 3), ("NO_SHARD", 0)])
def test_fsdp1(strategy: str, stage: int, use_orig_params: bool) -> None:
    wrapped = FullyShardedDataParallel(
        model(),
        sharding_strategy=ShardingStrategy[strategy],
        device_id=torch.device("cpu"),
        use_orig_params=use_orig_params,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    facts = detect_training(wrapped)
    assert (facts.engine, facts.parameters, facts.parameter_bytes) == ("fsdp1", 40, 4)
    assert (facts.communication_bytes, facts.reduction_bytes) == (2, 4)
    # One rank has nothing to shard: torch itself then turns the strategy into NO_SHARD.
    settings = {setting.name: setting.value for setting in facts.settings}
    assert settings["sharding_strategy"] == wrapped.sharding_strategy.name
    assert facts.stage == (0 if wrapped.sharding_strategy is ShardingStrategy.NO_SHARD else stage)
