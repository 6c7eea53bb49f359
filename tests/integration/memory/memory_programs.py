"""The trainings of ``memory_cases.py``: each builds its model and optimizer, and knows its step."""

import argparse
import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from memory_cases import MEMORY_CASES
from memory_models import (
    FeedForward,
    Recomputed,
    Retaining,
    Transformer,
    convolutions,
    image_loss,
    mlp,
    token_loss,
    vector_loss,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from zprof.model.training import TrainingFacts
from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.comm.mesh import make_mesh
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.train import build_program, iter_micro_batches, make_batches, train_step

MICRO_BATCHES = 2
#: 8 sequences of 64 x 128 elements enter each of 4 blocks.
JOB_MODEL = "--layers 4 --hidden 128 --heads 4 --vocabulary 256 --context 64 --batch 8"


@dataclass
class Program:
    """A training that was built and has not begun; ``proof`` counts what a test wants to know."""

    model: nn.Module
    optimizer: Any
    step: Callable[[int], None]
    training: TrainingFacts = dataclasses.field(default_factory=TrainingFacts)
    close: Callable[[], None] = lambda: None
    proof: Callable[[], dict[str, int]] = dict
    keep: Any = None


Make = Callable[[int, int], Program]
Loss = Callable[[nn.Module, int], torch.Tensor]


def plain(model: nn.Module, loss: Loss = token_loss, rank: int = 0, optimizer: Any = None) -> Program:
    """AdamW and the usual loop; gradients are dropped at the end of the step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        loss(model, 1000 * number + rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


def small(make: Callable[..., torch.optim.Optimizer] | None = None) -> Program:
    model = mlp()
    return plain(model, vector_loss, optimizer=make and make(model.parameters()))


def accumulating(
    model: nn.Module,
    loss: Loss,
    rank: int = 0,
    *,
    last: Callable[[bool], Any] = lambda is_last: nullcontext(),
) -> Program:
    """Two backward passes per step; ``last`` gives the context of each."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        for micro in range(MICRO_BATCHES):
            with last(micro == MICRO_BATCHES - 1):
                loss(model, 1000 * number + 10 * micro + rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


def hidden_tensor() -> Program:
    """Keep a tensor of 2 MB of which neither model, optimizer nor autograd knows."""
    return dataclasses.replace(small(), keep=torch.zeros(500_000))


def averaged_weights() -> Program:
    """Keep an average of the weights, made before the window and updated in place."""
    program = small()
    average = [parameter.detach().clone() for parameter in program.model.parameters()]

    def step(number: int) -> None:
        program.step(number)
        with torch.no_grad():
            for mean, parameter in zip(average, program.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)

    return dataclasses.replace(program, step=step)


class CountedBackend:
    """A backend of torch's compiler that counts the graphs it compiled and the runs of compiled code."""

    def __init__(self, name: str) -> None:
        torch._dynamo.reset()
        self._name = name
        self.graphs = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled = torch._dynamo.lookup_backend(self._name)(graph, inputs)
        self.graphs += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return compiled(*arguments)

        return run

    def in_program(self, program: Program) -> Program:
        program.proof = lambda: {"compiled_graphs": self.graphs, "compiled_runs": self.runs}
        program.close = torch._dynamo.reset
        return program


def compiled(model: nn.Module, loss: Loss, rank: int = 0, backend: str = "aot_eager") -> Program:
    counted = CountedBackend(backend)
    return counted.in_program(plain(torch.compile(model, backend=counted), loss, rank))


def step_in_backward() -> Program:
    """Each parameter has its own optimizer, which steps and drops the gradient as soon as it is there."""
    model = Transformer()
    optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    program = Program(model, list(optimizers.values()), lambda number: token_loss(model, number).backward())
    program.close = lambda: unhook(model)
    return program


def low_rank() -> Program:
    """Frozen weights, of which only small additions are trained."""
    model = Transformer().requires_grad_(False)
    for block in model.blocks:
        block.up = nn.Sequential(block.up, nn.Linear(4 * 256, 8), nn.Linear(8, 4 * 256))
    return plain(model)


def ddp(rank: int, world_size: int, **options: Any) -> Program:
    return plain(DistributedDataParallel(Transformer(), **options), rank=rank)


def ddp_accumulation(rank: int, world_size: int) -> Program:
    model = DistributedDataParallel(Transformer())
    return accumulating(
        model, token_loss, rank, last=lambda is_last: nullcontext() if is_last else model.no_sync()
    )


def sharded(model: Transformer, world_size: int, **options: Any) -> Transformer:
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2(rank: int, world_size: int, *, checkpointing: bool = False, **options: Any) -> Program:
    return plain(sharded(Transformer(checkpointing=checkpointing), world_size, **options), rank=rank)


def fsdp2_accumulation(rank: int, world_size: int) -> Program:
    """Gradients are reduced after the last micro-batch only; until then they are whole."""
    model = sharded(Transformer(), world_size)

    def last(is_last: bool) -> Any:
        model.set_requires_gradient_sync(is_last)
        return nullcontext()

    return accumulating(model, token_loss, rank, last=last)


def fsdp2_compiled(rank: int, world_size: int) -> Program:
    """Blocks are compiled, and what shards them is not."""
    model, counted = Transformer(), CountedBackend("aot_eager")
    for block in model.blocks:
        block.compile(backend=counted)
    return counted.in_program(plain(sharded(model, world_size), rank=rank))


def tensor_parallel(rank: int, world_size: int) -> Program:
    mesh = init_device_mesh("cpu", (world_size,))
    model = nn.Sequential(*(FeedForward() for _ in range(3)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return plain(model, vector_loss)  # the same batch on all ranks


def zero_engine(rank: int, world_size: int, *, stage: int, kind: str) -> Program:
    """The reference engine; the modelled link is fast, so that its bytes matter and not its time."""
    link = LinkModel(bandwidth_bytes_per_s=2e9, latency_s=1e-4)
    comm = ModelledComm(link) if kind.endswith("modelled") else NativeComm()
    dtype = torch.bfloat16 if kind.startswith("bf16") else torch.float32
    model, optimizer = zero(Transformer(), ZeroConfig(stage=stage, dtype=dtype), comm)
    program = plain(model, rank=rank, optimizer=optimizer)
    program.training = facts_of_engine(model)

    def close() -> None:
        comm.close()
        unhook(model)

    program.close = close
    return program


def engine_job(rank: int, world_size: int, *, options: str) -> Program:
    """The job that ``zprof train`` starts with these options."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = make_config(parser.parse_args([*JOB_MODEL.split(), *options.split()]))
    mesh = make_mesh(NativeComm, dp=world_size // config.mp, mp=config.mp)
    built = build_program(config, mesh)
    batches = iter_micro_batches(make_batches(config, mesh), range(100))

    def close() -> None:
        unhook(built.model)
        mesh.close()

    return Program(
        built.model,
        built.optimizer,
        lambda number: train_step(built, batches, number, micro_batches=1) and None,
        training=facts_of_engine(built.model, config.mp),
        close=close,
    )


def facts_of_engine(model: ZeroModel, model_parallel_ranks: int = 1) -> TrainingFacts:
    named = set(TrainingFacts.__struct_fields__)
    facts = {key: value for key, value in dataclasses.asdict(model.facts).items() if key in named}
    return TrainingFacts(**facts | {"model_parallel_ranks": model_parallel_ranks})


def unhook(model: nn.Module) -> None:
    """Take all hooks off a model: they hold what registered them, a cycle that Python cannot see through."""
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        for parameter in module._parameters.values():
            (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).clear()


Adam, AdamW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
ONE_RANK: dict[str, Callable[[], Program]] = {
    "single": lambda: plain(Transformer()),
    "single_mlp": small,
    "hidden_tensor": hidden_tensor,
    "averaged_weights": averaged_weights,
    "compiled": lambda: compiled(Transformer(), token_loss),
    "compiled_inductor": lambda: compiled(mlp(), vector_loss, backend="inductor"),
    "checkpointing": lambda: plain(Recomputed(reentrant=False), vector_loss),
    "checkpointing_reentrant": lambda: plain(Recomputed(reentrant=True), vector_loss),
    "retaining": lambda: plain(Retaining(), vector_loss),
    "adam_foreach": lambda: small(partial(Adam, foreach=True)),
    "adam_fused": lambda: small(partial(AdamW, fused=True)),
    "sgd_momentum": lambda: small(partial(SGD, lr=0.01, momentum=0.9)),
    "step_in_backward": step_in_backward,
    "accumulation": lambda: accumulating(mlp(), vector_loss),
    "convolution": lambda: plain(convolutions(), image_loss),
    "low_rank": low_rank,
}
PROGRAMS: dict[str, Make] = {
    **{name: lambda rank, world_size, make=make: make() for name, make in ONE_RANK.items()},
    "ddp": ddp,
    "ddp_bucket_view": partial(ddp, gradient_as_bucket_view=True),
    "ddp_static": partial(ddp, static_graph=True),
    "ddp_unused": partial(ddp, find_unused_parameters=True),
    "ddp_accumulation": ddp_accumulation,
    "ddp_compiled": lambda rank, _: compiled(DistributedDataParallel(Transformer()), token_loss, rank),
    "fsdp2": fsdp2,
    "fsdp2_bf16": partial(fsdp2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "fsdp2_checkpointing": partial(fsdp2, checkpointing=True),
    "fsdp2_kept": partial(fsdp2, reshard_after_forward=False),
    "fsdp2_accumulation": fsdp2_accumulation,
    "fsdp2_offload": partial(fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "fsdp2_compiled": fsdp2_compiled,
    "tensor_parallel": tensor_parallel,
    **{
        f"zero{stage}_{kind}": partial(zero_engine, stage=stage, kind=kind)
        for stage in range(4)
        for kind in ("fp32", "fp32_modelled", "bf16", "bf16_modelled")
    },
    "zero2_of_four": partial(zero_engine, stage=2, kind="bf16"),
    "zero3_of_four": partial(zero_engine, stage=3, kind="bf16"),
    **{name: partial(engine_job, options=case.job) for name, case in MEMORY_CASES.items() if case.job},
}
