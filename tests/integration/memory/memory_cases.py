"""What the memory tests train: each case builds its model and optimizer and knows its step."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from memory_models import Transformer, mlp, token_loss, vector_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from zprof.model.training import TrainingFacts
from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm


@dataclass
class Case:
    """A training that was built and has not begun.  ``proof`` counts what a test wants to know."""

    model: nn.Module
    optimizer: Any
    step: Callable[[int], None]
    training: TrainingFacts | None = None
    close: Callable[[], None] = lambda: None
    proof: Callable[[], dict[str, int]] = dict
    keep: list[Any] = field(default_factory=list)


def plain(
    model: nn.Module, loss: Callable[[nn.Module, int], torch.Tensor], rank: int = 0, optimizer: Any = None
) -> Case:
    """AdamW and the usual loop, gradients dropped at the end of the step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        loss(model, 1000 * number + rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def single_mlp(rank: int, world_size: int) -> Case:
    return plain(mlp(), vector_loss)


def single(rank: int, world_size: int) -> Case:
    return plain(Transformer(), token_loss)


def single_checkpointing(rank: int, world_size: int) -> Case:
    return plain(Transformer(checkpointing=True), token_loss)


def hidden_tensor(rank: int, world_size: int) -> Case:
    """A tensor of 2 MB that belongs to nobody: neither model, nor optimizer, nor autograd."""
    case = plain(mlp(), vector_loss)
    case.keep.append(torch.zeros(500_000))
    return case


def ddp(rank: int, world_size: int) -> Case:
    return plain(DistributedDataParallel(Transformer()), token_loss, rank)


def ddp_bucket_view(rank: int, world_size: int) -> Case:
    return plain(DistributedDataParallel(Transformer(), gradient_as_bucket_view=True), token_loss, rank)


def fsdp2(rank: int, world_size: int, policy: MixedPrecisionPolicy | None = None, **model: Any) -> Case:
    mesh = init_device_mesh("cpu", (world_size,))
    transformer = Transformer(**model)
    for block in transformer.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    fully_shard(transformer, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return plain(transformer, token_loss, rank)


def fsdp2_bf16(rank: int, world_size: int) -> Case:
    return fsdp2(rank, world_size, MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def fsdp2_checkpointing(rank: int, world_size: int) -> Case:
    return fsdp2(rank, world_size, checkpointing=True)


def zero_engine(rank: int, world_size: int, *, stage: int, dtype: torch.dtype, modelled: bool) -> Case:
    """The reference engine; the modelled link is fast, so that its bytes matter and not its time."""
    link = LinkModel(bandwidth_bytes_per_s=2e9, latency_s=1e-4)
    comm = ModelledComm(link) if modelled else NativeComm()
    model, optimizer = zero(Transformer(), ZeroConfig(stage=stage, dtype=dtype), comm)
    case = plain(model, token_loss, rank, optimizer)
    case.training = facts_of_engine(model)

    def close() -> None:
        comm.close()
        unhook(model)

    case.close = close
    return case


def facts_of_engine(model: ZeroModel, model_parallel_ranks: int = 1) -> TrainingFacts:
    named = {field.name for field in dataclasses.fields(TrainingFacts)}
    facts = {key: value for key, value in dataclasses.asdict(model.facts).items() if key in named}
    return TrainingFacts(**facts | {"model_parallel_ranks": model_parallel_ranks})


def unhook(model: nn.Module) -> None:
    """Take all hooks off a model that is done with.

    Hooks hold what registered them, and that the parameters: a cycle that Python cannot see through, and
    what is left would be memory without an owner in the next case.
    """
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        for parameter in module._parameters.values():
            (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).clear()


def sketch_zero3(rank: int, world_size: int) -> Case:
    """ZeRO-3 by hand in its crudest form: ``param.data`` swapped for a gathered tensor and back."""
    model = mlp()
    shards = [_shard(parameter, rank, world_size) for parameter in model.parameters()]
    for module in model:
        pairs = [
            (p, s)
            for p, s in zip(model.parameters(), shards, strict=True)
            if any(p is own for own in module.parameters())
        ]
        module.register_forward_pre_hook(partial(_gather, pairs))
        module.register_forward_hook(partial(_release, pairs))
    optimizer = torch.optim.AdamW(shards, lr=1e-3)
    return plain(model, vector_loss, rank, optimizer)


def _shard(parameter: nn.Parameter, rank: int, world_size: int) -> nn.Parameter:
    flat = parameter.detach().flatten()
    shard = nn.Parameter(flat.view(world_size, -1)[rank].clone())
    _free(parameter)

    def reduce(full: torch.Tensor) -> None:
        owned = torch.empty_like(shard)
        dist.reduce_scatter_tensor(owned, full.grad.flatten())
        shard.grad, full.grad = owned, None

    parameter.register_post_accumulate_grad_hook(reduce)
    return shard


def _gather(pairs: list[Any], module: nn.Module, arguments: Any) -> None:
    for parameter, shard in pairs:
        full = torch.empty(parameter.numel())
        dist.all_gather_into_tensor(full, shard.detach())
        parameter.data = full.view(parameter.shape)


def _release(pairs: list[Any], *_: Any) -> None:
    for parameter, _shard_of in pairs:
        _free(parameter)


def _free(parameter: nn.Parameter) -> None:
    parameter.data = torch.empty(1).expand(parameter.shape)  # keeps the shape at 4 bytes


def _zero_cases() -> dict[str, Callable[[int, int], Case]]:
    kinds = {"fp32": (torch.float32, False), "fp32_modelled": (torch.float32, True)}
    kinds |= {"bf16": (torch.bfloat16, False), "bf16_modelled": (torch.bfloat16, True)}
    return {
        f"zero{stage}_{name}": partial(zero_engine, stage=stage, dtype=dtype, modelled=modelled)
        for stage in range(4)
        for name, (dtype, modelled) in kinds.items()
    }


CASES: dict[str, Callable[[int, int], Case]] = {
    "single_mlp": single_mlp,
    "single": single,
    "single_checkpointing": single_checkpointing,
    "hidden_tensor": hidden_tensor,
    "ddp": ddp,
    "ddp_bucket_view": ddp_bucket_view,
    "fsdp2": fsdp2,
    "fsdp2_bf16": fsdp2_bf16,
    "fsdp2_checkpointing": fsdp2_checkpointing,
    "sketch_zero3": sketch_zero3,
    **_zero_cases(),
}
