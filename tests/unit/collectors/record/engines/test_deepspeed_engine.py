"""DeepSpeed's engines by the names that they have: who owns what, and when a step is over."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from zprof.collectors.record.engines.deepspeed import EngineSteps, iter_held_tensors
from zprof.model.tenants import Tenant


class DeepSpeedEngine:
    """Updates on every second call; ``overflows``: the numbers of the updates that are skipped."""

    def __init__(self, overflows: tuple[int, ...] = ()) -> None:
        self.global_steps = self.skipped_steps = self.calls = 0
        self._overflows = overflows

    def step(self) -> str:
        self.calls += 1
        if self.calls % 2 == 0:
            self.skipped_steps += self.global_steps in self._overflows
            self.global_steps += 1
        return "result"


@pytest.fixture
def engine_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", module)


@pytest.mark.usefixtures("engine_module")
def test_a_step_is_an_update_and_a_skipped_one_is_told() -> None:
    told: list[bool] = []
    original, engine = DeepSpeedEngine.step, DeepSpeedEngine(overflows=(1,))
    steps = EngineSteps(lambda engine: None, lambda engine, skipped: told.append(skipped))
    steps.install()
    steps.install()  # once is enough
    assert [engine.step() for _ in range(6)] == ["result"] * 6
    steps.remove()
    engine.step()
    engine.step()
    assert told == [False, True, False]
    assert DeepSpeedEngine.step is original


def test_what_an_engine_holds_has_its_owner() -> None:
    def tensor() -> torch.Tensor:
        return torch.zeros(3)

    weight = torch.nn.Parameter(tensor())
    weight.grad_accum = tensor()  # type: ignore[attr-defined]
    master, bucket, partition, staging = tensor(), tensor(), tensor(), tensor()
    master.grad = tensor()
    zero = SimpleNamespace(
        single_partition_of_fp32_groups=[master],
        averaged_gradients={0: [partition], 1: None},
        ipg_buckets={torch.float32: SimpleNamespace(buffer=[bucket])},
        temp_grad_buffer_for_cpu_offload=staging,
    )
    module = torch.nn.Module()
    module.weight = weight
    owners = {
        tensor.data_ptr(): role.tenant
        for role, tensor in iter_held_tensors(SimpleNamespace(optimizer=zero, module=module))
    }
    assert owners == {
        master.data_ptr(): Tenant.OPTIMIZER_STATE,
        master.grad.data_ptr(): Tenant.GRADIENTS,
        partition.data_ptr(): Tenant.GRADIENTS,
        weight.grad_accum.data_ptr(): Tenant.GRADIENTS,  # type: ignore[attr-defined]
        bucket.data_ptr(): Tenant.COMMUNICATION_BUFFERS,
        staging.data_ptr(): Tenant.COMMUNICATION_BUFFERS,
    }
