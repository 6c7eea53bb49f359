"""What can be seen of a training program from its model alone, where the program says nothing itself."""

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from zprof.model.training import TrainingFacts


def detect_training(model: nn.Module | None) -> TrainingFacts:
    """Engine, stage and element sizes for plain modules, DDP and FSDP2; unknown stays None.

    Optimizer state is not guessed: it depends on an optimizer that has not stepped yet.  Nor is a number
    of parameters where some are frozen: those are held, but have no gradient and do not travel.
    """
    if model is None:
        return TrainingFacts()
    parameters = list(model.parameters())
    if not parameters:
        return TrainingFacts(engine=_engine(model))
    engine = _engine(model)
    size = _element_size(parameters)
    return TrainingFacts(
        engine=engine,
        stage={"ddp": 0, "fsdp2": 3}.get(engine),
        parameters=_trained_elements(parameters),
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


def _trained_elements(parameters: list[nn.Parameter]) -> int | None:
    if any(is_lazy(parameter) or not parameter.requires_grad for parameter in parameters):
        return None
    return sum(parameter.numel() for parameter in parameters)


def _element_size(parameters: list[nn.Parameter]) -> int | None:
    """Bytes of an element where all have one type: a lazy parameter has its type already."""
    types = {parameter.dtype for parameter in parameters}
    return types.pop().itemsize if len(types) == 1 else None


def _shard_ranks(parameters: list[nn.Parameter]) -> int | None:
    """Ranks of a one-dimensional mesh; with more dimensions (HSDP) which of them shards is unknown."""
    mesh: Any = getattr(parameters[0], "device_mesh", None)
    if mesh is not None:
        return int(mesh.size()) if mesh.ndim == 1 else None
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_initialized() else 1
