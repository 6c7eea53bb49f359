"""ZeRO stage 3 on one page: each of N ranks keeps 1/N of the weights, the gradients and AdamW's moments.

    model = GPT(config)
    trainer = Zero3(model, model.blocks)
    for tokens, targets in batches:
        model(tokens, targets).backward()
        trainer.step()

A unit is one block, or what is left of the model (the root: embeddings, last norm, head).  Its parameters lie
side by side in one flat tensor, of which rank r keeps the r-th shard.  The whole tensor is in memory only
while the unit computes:

    | p0 | p1 | p2 ... | padding |        N shards of equal size

    forward     gather the unit (and start on the next one), compute, release
    backward    gather the unit (and start on the next one), compute, release, reduce-scatter its gradients
    step        AdamW on the shards; nothing is communicated

For psi parameters a step moves 3 psi elements, two all-gathers and a reduce-scatter; the all-reduce of data
parallelism moves 2 psi (Rajbhandari et al., arXiv 1910.02054, section 7.2).

To fit on a page, this is fp32 only, with one backward per step in which every parameter gets a gradient, and
without activation checkpointing.  `zprof.reference_engine.zero` lifts these limits; the weights are the same.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

# torch 2.13 renamed these two and warns at the old names; 2.8 has only those.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALIGNMENT = 8  # elements: every shard is a multiple of one 32-byte vector load


class Unit:
    """Parameters that are gathered, released and reduced together, and this rank's shard of them."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the parameters into one flat tensor with rank 0's values, and keep this rank's shard."""
        self.parameters = list(parameters)
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        padding = -self.numel % (dist.get_world_size() * ALIGNMENT)
        self.full = self.parameters[0].new_zeros(self.numel + padding)
        for view, parameter in zip(self.views(self.full), self.parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view  # for good: from here on only the memory behind it comes and goes
        dist.broadcast(self.full, src=0)
        self.shard = nn.Parameter(self.full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.gathering: dist.Work | None = None
        self.release()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a flat tensor, shaped like the parameters."""
        parts = torch.split(flat[: self.numel], [parameter.numel() for parameter in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def gather(self) -> None:
        """Start to collect the shards of all ranks, unless they are here or on their way."""
        storage = self.full.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.full.nbytes)
            self.gathering = all_gather(self.full, self.shard.detach(), async_op=True)

    def wait(self) -> None:
        """Block until the values are here."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def release(self) -> None:
        """Free the memory.  Parameters, and what autograd saved of them, stay views of the empty storage."""
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers, releases and reduces the units of a model from hooks, and updates the shards."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], learning_rate: float = 1e-3) -> None:
        """Shard a model that calls its blocks once each, in this order; each returns one tensor."""
        in_blocks = {parameter for block in blocks for parameter in block.parameters()}
        root = Unit(parameter for parameter in model.parameters() if parameter not in in_blocks)
        units = [Unit(block.parameters()) for block in blocks]
        self.units = [root, *units]
        # The root holds the first layer and the last, so it comes first in both directions.
        self.next_in_forward = dict(pairwise([root, *units]))
        self.next_in_backward = dict(pairwise([root, *reversed(units)]))
        self.reduction: dist.Work | None = None
        self.optimizer = torch.optim.AdamW([unit.shard for unit in self.units], learning_rate, fused=True)
        for module, unit in zip([model, *blocks], self.units, strict=True):
            module.register_forward_pre_hook(partial(self.before_forward, unit))
            module.register_forward_hook(partial(self.after_forward, unit))
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.after_gradient, unit))  # type: ignore[no-untyped-call]

    def before_forward(self, unit: Unit, module: nn.Module, inputs: object) -> None:
        """Gather a unit for its forward."""
        self.fetch(unit, self.next_in_forward)

    def after_forward(self, unit: Unit, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        """Release a unit; its backward starts when its output gets a gradient."""
        unit.release()
        if output.requires_grad:
            output.register_hook(partial(self.before_backward, unit))  # type: ignore[no-untyped-call]

    def before_backward(self, unit: Unit, gradient: torch.Tensor) -> None:
        """Gather a unit for its backward."""
        self.fetch(unit, self.next_in_backward)

    def fetch(self, unit: Unit, following: dict[Unit, Unit]) -> None:
        """Wait for a unit; the one that follows it is prefetched, and arrives while this one computes."""
        unit.gather()
        if unit in following:
            following[unit].gather()
        unit.wait()

    def after_gradient(self, unit: Unit, parameter: nn.Parameter) -> None:
        """Release and reduce a unit that has all its gradients: the backward needs its weights no more."""
        if all(parameter.grad is not None for parameter in unit.parameters):
            unit.release()
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Start to average a unit's gradients over the ranks; each rank gets its shard of the mean."""
        self.finish_reduction()  # so that the whole gradients of one unit at most are in flight
        bucket = torch.zeros_like(unit.full)
        for view, parameter in zip(unit.views(bucket), unit.parameters, strict=True):
            view.copy_(parameter.grad)  # type: ignore[arg-type]  # after_gradient has checked
            parameter.grad = None
        bucket.div_(dist.get_world_size())
        unit.shard.grad = torch.empty_like(unit.shard)
        self.reduction = reduce_scatter(unit.shard.grad, bucket, async_op=True)

    def finish_reduction(self) -> None:
        """Wait for the reduction in flight."""
        if self.reduction is not None:
            self.reduction.wait()
            self.reduction = None

    def step(self) -> None:
        """Update this rank's shards; the next gathers take the new weights to the other ranks."""
        self.finish_reduction()
        if any(unit.shard.grad is None for unit in self.units):
            raise RuntimeError("a parameter has no gradient: each must be used in every forward and backward")
        self.optimizer.step()
        self.optimizer.zero_grad()
