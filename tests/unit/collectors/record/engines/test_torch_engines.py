"""Facts and settings that are read from FSDP1 and FSDP2, wrapped on four ranks of which one exists."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from zprof.collectors.record.training import detect_training
from zprof.model.training import SettingEffect, TrainingFacts

BF16, FP32 = torch.bfloat16, torch.float32
#: Two layers of 5 x 3 weights and 5 biases.
ELEMENTS = 2 * (15 + 5)


@pytest.fixture(scope="module", autouse=True)
def four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(3, 5))


def fsdp1(strategy: ShardingStrategy, **options: object) -> nn.Module:
    if "HYBRID" in strategy.name:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2))
    cpu = torch.device("cpu")
    return FullyShardedDataParallel(model(), sharding_strategy=strategy, device_id=cpu, **options)  # type: ignore[arg-type]


def fsdp2(shape: tuple[int, ...] = (4,), prefetch: bool = False, **options: object) -> nn.Module:
    names = ("replicate", "shard")[-len(shape) :]
    options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    trained = model()
    layers = [fully_shard(trained[index], **options) for index in (0, 2)]  # type: ignore[call-overload]
    if prefetch:
        layers[0].set_modules_to_forward_prefetch([layers[1]])
    fully_shard(trained, **options)  # type: ignore[call-overload]
    return trained


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize(
    ("strategy", "stage", "ranks", "replicas"),
    [
        (ShardingStrategy.FULL_SHARD, 3, 4, None),
        (ShardingStrategy.SHARD_GRAD_OP, 2, 4, None),
        (ShardingStrategy.NO_SHARD, 0, 4, None),
        (ShardingStrategy.HYBRID_SHARD, 3, 2, 2),
        (ShardingStrategy._HYBRID_SHARD_ZERO2, 2, 2, 2),
    ],
)
def test_the_strategy_of_fsdp1(
    strategy: ShardingStrategy, stage: int, ranks: int, replicas: int | None, original: bool
) -> None:
    facts = detect_training(fsdp1(strategy, use_orig_params=original))
    assert (facts.engine, facts.stage, facts.shard_ranks, facts.replica_ranks) == (
        "fsdp1",
        stage,
        ranks,
        replicas,
    )
    assert facts.parameters == ELEMENTS
    settings = {setting.name: setting.value for setting in facts.settings}
    assert (settings["sharding_strategy"], settings["use_orig_params"]) == (strategy.name, str(original))


def test_flat_parameters_are_padded_to_equal_shards() -> None:
    """Without the padding between the original parameters, 40 elements need none on 4 ranks."""
    assert detect_training(fsdp1(ShardingStrategy.FULL_SHARD)).padding_elements == 0
    aligned = detect_training(fsdp1(ShardingStrategy.FULL_SHARD, use_orig_params=True))
    # 15 + 1, 5 + 3, 15 + 1, 5 and 3 more: a multiple of 4.
    assert aligned.padding_elements == 8


def test_frozen_parameters_are_not_counted() -> None:
    frozen = model().requires_grad_(False)
    cpu = torch.device("cpu")
    wrapped = FullyShardedDataParallel(frozen, device_id=cpu)
    assert detect_training(wrapped).parameters is None


def find_settings(facts: TrainingFacts) -> dict[str, tuple[str, bool]]:
    return {setting.name: (setting.value, setting.is_set) for setting in facts.settings}


def test_options_of_fsdp1_are_settings() -> None:
    facts = detect_training(
        fsdp1(
            ShardingStrategy.FULL_SHARD,
            mixed_precision=MixedPrecision(param_dtype=BF16, reduce_dtype=FP32),
            cpu_offload=CPUOffload(offload_params=True),
            backward_prefetch=BackwardPrefetch.BACKWARD_POST,
            forward_prefetch=True,
            limit_all_gathers=False,
        )
    )
    assert (facts.parameter_bytes, facts.communication_bytes, facts.reduction_bytes) == (4, 2, 4)
    found = find_settings(facts)
    assert found["mixed_precision.param_dtype"] == ("bfloat16", True)
    assert found["cpu_offload"] == ("True", True)
    assert found["backward_prefetch"] == ("BACKWARD_POST", True)
    assert found["limit_all_gathers"] == ("False", True)
    assert found["use_orig_params"] == ("False", False)
    idle = {setting.name for setting in facts.settings if setting.effect is SettingEffect.NO_STREAMS}
    assert idle == {"forward_prefetch", "backward_prefetch"}  # limit_all_gathers is off


@pytest.mark.parametrize(
    ("make", "stage", "ranks", "replicas", "reshard"),
    [
        (fsdp2, 3, 4, None, "True"),
        (lambda: fsdp2(reshard_after_forward=False), 2, 4, None, "False"),
        (lambda: fsdp2(reshard_after_forward=2), 3, 4, None, "2"),
        (lambda: fsdp2((2, 2)), 3, 2, 2, "True"),
    ],
    ids=["default", "kept", "within two ranks", "hybrid"],
)
def test_the_mesh_and_resharding_of_fsdp2(
    make: Callable[[], nn.Module], stage: int, ranks: int, replicas: int | None, reshard: str
) -> None:
    facts = detect_training(make())
    assert (facts.engine, facts.stage, facts.shard_ranks, facts.replica_ranks) == (
        "fsdp2",
        stage,
        ranks,
        replicas,
    )
    assert facts.parameters == ELEMENTS
    # Rows of 3 weights, or a bias: 5 rows are padded to the next multiple of the ranks.
    assert facts.padding_elements == 2 * (3 + 1) * (-5 % ranks)
    assert find_settings(facts)["reshard_after_forward"] == (reshard, reshard != "True")


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (MixedPrecisionPolicy(), (4, 4)),
        (MixedPrecisionPolicy(param_dtype=BF16), (2, 2)),
        (MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32), (2, 4)),
    ],
)
def test_bytes_that_fsdp2_sends(policy: MixedPrecisionPolicy, sizes: tuple[int, int]) -> None:
    facts = detect_training(fsdp2(mp_policy=policy))
    assert (facts.communication_bytes, facts.reduction_bytes) == sizes


def test_units_that_send_different_types_have_no_common_size() -> None:
    trained = model()
    fully_shard(trained[0], mp_policy=MixedPrecisionPolicy(param_dtype=BF16))
    fully_shard(trained)
    facts = detect_training(trained)
    assert (facts.communication_bytes, facts.reduction_bytes) == (None, None)


def test_options_of_fsdp2_are_settings() -> None:
    trained = fsdp2(prefetch=True, offload_policy=CPUOffloadPolicy(pin_memory=False))
    trained.set_requires_gradient_sync(False)  # type: ignore[operator]
    facts = detect_training(trained)
    found = find_settings(facts)
    assert found["offload_policy"] == ("CPUOffloadPolicy", True)
    assert found["set_modules_to_forward_prefetch"] == ("1 units", True)
    assert found["set_requires_gradient_sync"] == ("False in 2 units", True)
    assert "set_modules_to_backward_prefetch" not in found


@pytest.mark.parametrize(
    ("version", "variable", "is_named"), [(2, "true", True), (2, "false", False), (1, "true", False)]
)
def test_the_prefetch_that_accelerate_does_not_pass_on_is_named(
    version: int, variable: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setenv("FSDP_FORWARD_PREFETCH", variable)
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=version)
    effects = [setting.effect for setting in detect_training(fsdp2()).settings]
    assert (SettingEffect.IGNORED_BY_FSDP2 in effects) is is_named
    assert plugin.fsdp_version == version  # it is alive until here
