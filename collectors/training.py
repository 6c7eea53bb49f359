"""What can be seen of a training program from its model alone, where the program says nothing itself."""

from typing import Any

import torch
from torch import nn

from zprof.model.training import TrainingFacts


def detect_training(model: nn.Module | None) -> TrainingFacts:
    """Engine, stage and element sizes for plain modules, DDP and FSDP2; unknown stays None.

    Optimizer state is not guessed: it depends on an optimizer that has not stepped yet.
    """
    if model is None:
        return TrainingFacts()
    parameters = list(model.parameters())
    if not parameters:
        return TrainingFacts(engine=_engine(model))
    engine = _engine(model)
    size = parameters[0].element_size()
    return TrainingFacts(
        engine=engine,
        stage={"ddp": 0, "fsdp2": 3}.get(engine),
        parameters=sum(parameter.numel() for parameter in parameters),
        shard_ranks=_shard_ranks(parameters),
        parameter_bytes=size,
        gradient_bytes=size,
        communication_bytes=size,
    )


def _engine(model: nn.Module) -> str:
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    for marker, engine in (
        ("DeepSpeedEngine", "deepspeed"),
        ("FSDPModule", "fsdp2"),
        ("FullyShardedDataParallel", "fsdp1"),
        ("DistributedDataParallel", "ddp"),
    ):
        if marker in names:
            return engine
    return "pytorch"


def _shard_ranks(parameters: list[nn.Parameter]) -> int:
    mesh: Any = getattr(parameters[0], "device_mesh", None)
    if mesh is not None:
        return int(mesh.size())
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_initialized() else 1
