"""Stand-ins for training frameworks that are not installed: the hooks that they call, in their order."""

import enum
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from zprof.collectors.record.schedule import RecordingSchedule

STEPS = RecordingSchedule(skip=1, memory=1, time=0)


class Parallel(enum.Enum):
    """``transformers.training_args.ParallelMode``, as far as it matters."""

    NOT_PARALLEL = "not_parallel"
    DISTRIBUTED = "distributed"


class WrappedOptimizer:
    """As accelerate's: it has an optimizer, and is none of torch's that was set up."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def backward(model: nn.Module) -> None:
    model(torch.ones(4, 8)).sum().backward()


@contextmanager
def stubbed(bridge: str, modules: dict[str, ModuleType | None], patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bridge of ``zprof.integrations``, imported afresh while the frameworks are what ``modules`` says."""
    name = f"zprof.integrations.{bridge}"
    with patch.context() as within:
        for module, stub in modules.items():
            within.setitem(sys.modules, module, stub)
        within.delitem(sys.modules, name, raising=False)
        try:
            yield importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)


def transformers_stub() -> ModuleType:
    stub = ModuleType("transformers")
    stub.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    return stub


def lightning_stub(name: str) -> ModuleType:
    stub = ModuleType(name)
    stub.Callback = type("Callback", (), {"home": name})  # type: ignore[attr-defined]
    return stub


def trainer_arguments(**changed: Any) -> SimpleNamespace:
    """Of a Hugging Face Trainer."""
    usual = {
        "gradient_accumulation_steps": 2,
        "fsdp": [],
        "deepspeed": None,
        "parallel_mode": Parallel.NOT_PARALLEL,
    }
    return SimpleNamespace(**usual | changed)


class FakeEngine(nn.Module):
    """As ``deepspeed.DeepSpeedEngine``, by the names that DeepSpeed 0.19.8 has."""

    def __init__(self, module: nn.Module, optimizer: Any, *, stage: int, accumulation: int = 2) -> None:
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self.global_steps, self.micro_steps, self.seq_dp_world_size = 0, 0, 4
        self._stage, self._accumulation = stage, accumulation

    def zero_optimization_stage(self) -> int:
        return self._stage

    def gradient_accumulation_steps(self) -> int:
        return self._accumulation

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        return torch.bfloat16, torch.float32

    @property
    def communication_data_type(self) -> torch.dtype:
        return torch.float16

    def step(self) -> str:
        """Updates the model at the boundary of accumulation only."""
        self.micro_steps += 1
        if self.micro_steps % self._accumulation == 0:
            self._take_model_step()
        return "stepped"

    def _take_model_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1


class FakePipelineEngine(FakeEngine):
    """``step()`` is not for users there: a whole batch is."""

    def train_batch(self) -> float:
        for _ in range(self._accumulation):
            backward(self.module)
        self._take_model_step()
        return 0.5
