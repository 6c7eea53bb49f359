"""Build the contenders: the engine's stages, and torch's DDP, DDP with ZeroRedundancyOptimizer, and FSDP2.

All train the same GPT from the same weights with torch's fused AdamW; each peer is set up as its own
documentation recommends for memory and speed.  The engine is called

    zero0 .. zero3     with its defaults: reductions and gathers in parallel with compute, one unit ahead
    ... keep           stage 3 that keeps gathered parameters for the backward (FSDP2: reshard False)
    ... plain          without any overlap, as FSDP2 on CPU ranks always is (it overlaps with CUDA streams)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.steps.launch import BFLOAT16, Plan
from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.config import Keep
from zprof.reference_engine.program.gpt import GPT, GPTConfig

_PLAIN: Mapping[str, object] = {
    "forward_prefetch": 0,
    "backward_prefetch": 0,
    "overlap_reduce": False,
    "overlap_gather": False,
}


def _nothing() -> None:
    pass


def _unknown() -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A model and optimizer to compare.

    ``finish`` waits for what the last step left in flight; ``moved`` returns the bytes by its own count.
    """

    model: Callable[..., torch.Tensor]
    optimizer: torch.optim.Optimizer
    finish: Callable[[], None] = _nothing
    moved: Callable[[], int | None] = _unknown

    def step(self, tokens: torch.Tensor) -> float:
        """Run one optimizer step and return the loss before it."""
        self.optimizer.zero_grad()
        loss = self.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())


def make_contender(name: str, plan: Plan) -> Contender:
    """Build a contender, on all ranks at once.

    Raises:
        KeyError: there is none of this name.
    """
    torch.manual_seed(plan.seed)
    return _MAKERS[name](plan)


def gpt_config(plan: Plan) -> GPTConfig:
    """Return the model's sizes."""
    return GPTConfig(
        layers=plan.layers,
        hidden=plan.hidden,
        heads=plan.heads,
        vocabulary=plan.vocabulary,
        context=plan.context,
    )


def _adamw(model: nn.Module, plan: Plan) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, fused=True)


def _engine_maker(stage: int, settings: Mapping[str, object]) -> Callable[[Plan], Contender]:
    def make_engine(plan: Plan) -> Contender:
        config = ZeroConfig(
            stage=stage,
            dtype=getattr(torch, plan.dtype),
            learning_rate=plan.learning_rate,
            **settings,  # type: ignore[arg-type]
        )
        model, optimizer = zero(GPT(gpt_config(plan)), config)
        return Contender(
            model=model,
            optimizer=optimizer,
            finish=model.synchronize,
            moved=lambda: sum(model.comm.moved.values()),
        )

    return make_engine


def _make_ddp(plan: Plan) -> Contender:
    model = DistributedDataParallel(GPT(gpt_config(plan)), gradient_as_bucket_view=True)
    return Contender(model=model, optimizer=_adamw(model, plan))


def _make_ddp_zro(plan: Plan) -> Contender:
    model = DistributedDataParallel(GPT(gpt_config(plan)), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.AdamW,
        parameters_as_bucket_view=True,
        lr=plan.learning_rate,
        fused=True,
    )
    return Contender(model=model, optimizer=optimizer)


def _fsdp2_maker(keep: bool) -> Callable[[Plan], Contender]:
    def make_fsdp2(plan: Plan) -> Contender:
        model = GPT(gpt_config(plan))
        precision = MixedPrecisionPolicy()
        if plan.dtype == BFLOAT16:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        mesh = init_device_mesh("cpu", (plan.ranks,))
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=not keep, mp_policy=precision)
        return Contender(model=model, optimizer=_adamw(model, plan))

    return make_fsdp2


_KEEP: Mapping[str, object] = {"keep_after_forward": Keep.ALL}
_MAKERS: Mapping[str, Callable[[Plan], Contender]] = {
    "ddp": _make_ddp,
    "ddp + zro": _make_ddp_zro,
    "fsdp2": _fsdp2_maker(keep=False),
    "fsdp2 keep": _fsdp2_maker(keep=True),
    "zero0": _engine_maker(0, {}),
    "zero1": _engine_maker(1, {}),
    "zero1 plain": _engine_maker(1, _PLAIN),
    "zero2": _engine_maker(2, {}),
    "zero2 plain": _engine_maker(2, _PLAIN),
    "zero3": _engine_maker(3, {}),
    "zero3 plain": _engine_maker(3, _PLAIN),
    "zero3 keep": _engine_maker(3, _KEEP),
    "zero3 keep plain": _engine_maker(3, {**_KEEP, **_PLAIN}),
}
