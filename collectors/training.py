"""What can be seen of a training program from its model alone, where the program says nothing itself."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from zprof.collectors.optimizer_facts import optimizer_facts
from zprof.collectors.wire import wire_sizes
from zprof.model.training import TrainingFacts


def detect_training(model: nn.Module | None, optimizer: Any = None) -> TrainingFacts:
    """Engine, stage and element sizes for plain modules, DDP and FSDP2; unknown stays None.

    The size of the optimizer's state is known once it has stepped.  A number of parameters is not given where
    some are frozen: those are held, but have no gradient and do not travel.
    """
    if model is None:
        return TrainingFacts()
    parameters = list(model.parameters())
    optimizers = (
        () if optimizer is None else optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    )
    engine = _engine(model)
    if not parameters:
        return TrainingFacts(engine=engine)
    size = _element_size(parameters)
    stage = _stage(engine, optimizers)
    state = optimizer_facts(
        optimizers, [parameter for parameter in parameters if parameter.requires_grad], partitioned=stage == 1
    )
    wire = wire_sizes(model, size)
    known = wire.gathered_bytes is not None and wire.reduced_bytes is not None
    return TrainingFacts(
        engine=engine,
        stage=stage,
        parameters=_trained_elements(parameters),
        shard_ranks=_shard_ranks(parameters),
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_state_bytes=state.state_bytes,
        communication_bytes=wire.gathered_bytes if known else None,
        reduction_bytes=wire.reduced_bytes if known else None,
        step_counters=state.step_counters,
    )


def _stage(engine: str, optimizers: Sequence[Any]) -> int | None:
    """What is sharded; unknown for a program of several ranks that uses no engine of torch's."""
    partitioned = any("ZeroRedundancyOptimizer" in _ancestors(optimizer) for optimizer in optimizers)
    if engine in ("ddp", "pytorch") and partitioned:
        return 1
    if engine == "pytorch":
        distributed = torch.distributed
        alone = not distributed.is_initialized() or distributed.get_world_size() == 1
        return 0 if alone else None
    return {"ddp": 0, "fsdp2": 3}.get(engine)


def _ancestors(value: Any) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def _engine(model: nn.Module) -> str:
    names = {name for module in model.modules() for name in _ancestors(module)}
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
