"""ZeRO stage 3 on one page: each of N ranks keeps 1/N of the weights, gradients and AdamW moments.

    model = GPT(config)
    trainer = Zero3(model, model.blocks)
    for tokens, targets in batches:
        model(tokens, targets).backward()
        trainer.step()

A unit is one block, or the rest of the model (the root: embeddings, last norm, head).  Its parameters are
stored one after the other in a flat tensor, and rank r keeps the r-th shard.  The unsharded tensor is in
memory only while the unit computes:

    | p0 | p1 | p2 ... | padding |        N shards of equal size

    forward     all-gather the unit (and prefetch the next one), compute, release
    backward    all-gather the unit (and prefetch the next one), compute, release, reduce-scatter gradients
    step        AdamW on the shards, without communication

For psi parameters, a step moves 3 psi elements: two all-gathers and a reduce-scatter.  The all-reduce of data
parallelism moves 2 psi (Rajbhandari et al., arXiv 1910.02054, section 7.2).

To fit on a page, this supports only fp32, one backward per step in which every parameter gets a gradient, and
no activation checkpointing.  `zprof.reference_engine.zero` lifts these limits and computes the same weights.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

# torch 2.13 renamed these two and warns about the old names; torch 2.8 has only the old names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALIGNMENT = 8  # elements: every shard is a multiple of one 32-byte vector load


class Unit:
    """Parameters that are gathered, released and reduced together, with this rank's shard."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the parameters into one flat tensor with rank 0's values, and keep this rank's shard."""
        self.parameters = list(parameters)
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        padding = -self.numel % (dist.get_world_size() * ALIGNMENT)
        self.full = self.parameters[0].new_zeros(self.numel + padding)
        for view, parameter in zip(self.views(self.full), self.parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view  # set only once: from here on, only the storage is resized
        dist.broadcast(self.full, src=0)
        self.shard = nn.Parameter(self.full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.gathering: dist.Work | None = None
        self.release()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a flat tensor, shaped like the parameters."""
        parts = torch.split(flat[: self.numel], [parameter.numel() for parameter in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def gather(self) -> None:
        """Launch the all-gather, unless the parameters are gathered or in flight already."""
        storage = self.full.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.full.nbytes)
            self.gathering = all_gather(self.full, self.shard.detach(), async_op=True)

    def wait(self) -> None:
        """Wait for the all-gather in flight, if any."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def release(self) -> None:
        """Free the memory.  Parameters, and tensors saved by autograd, stay views of the empty storage."""
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers, releases and reduces the units of a model from hooks, and updates the shards."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], learning_rate: float = 1e-3) -> None:
        """Shard a model that calls each block once, in this order; each block returns one tensor."""
        in_blocks = {parameter for block in blocks for parameter in block.parameters()}
        root = Unit(parameter for parameter in model.parameters() if parameter not in in_blocks)
        units = [Unit(block.parameters()) for block in blocks]
        self.units = [root, *units]
        # The root has the first and the last layer, so it is first in both directions.
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
        """Release a unit; its backward starts when the gradient of its output is ready."""
        unit.release()
        if output.requires_grad:
            output.register_hook(partial(self.before_backward, unit))  # type: ignore[no-untyped-call]

    def before_backward(self, unit: Unit, gradient: torch.Tensor) -> None:
        """Gather a unit for its backward."""
        self.fetch(unit, self.next_in_backward)

    def fetch(self, unit: Unit, next_unit: dict[Unit, Unit]) -> None:
        """Gather a unit, and prefetch the next one while this one computes."""
        unit.gather()
        if unit in next_unit:
            next_unit[unit].gather()
        unit.wait()

    def after_gradient(self, unit: Unit, parameter: nn.Parameter) -> None:
        """Release and reduce a unit with all gradients: the backward no longer needs its weights."""
        if all(parameter.grad is not None for parameter in unit.parameters):
            unit.release()
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Launch the reduce-scatter of a unit's gradients; each rank gets its shard of the mean."""
        self.finish_reduction()  # limits unsharded gradients in flight to one unit
        bucket = torch.zeros_like(unit.full)
        for view, parameter in zip(unit.views(bucket), unit.parameters, strict=True):
            view.copy_(parameter.grad)  # type: ignore[arg-type]  # after_gradient has checked
            parameter.grad = None
        bucket.div_(dist.get_world_size())
        unit.shard.grad = torch.empty_like(unit.shard)
        self.reduction = reduce_scatter(unit.shard.grad, bucket, async_op=True)

    def finish_reduction(self) -> None:
        """Wait for the reduction in flight, if any."""
        if self.reduction is not None:
            self.reduction.wait()
            self.reduction = None

    def step(self) -> None:
        """Update this rank's shards; the next all-gathers distribute the new weights."""
        self.finish_reduction()
        if any(unit.shard.grad is None for unit in self.units):
            raise RuntimeError("a parameter has no gradient: each must be used in every forward and backward")
        self.optimizer.step()
        self.optimizer.zero_grad()
