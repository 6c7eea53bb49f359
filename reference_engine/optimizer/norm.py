"""The norm of the gradients of all ranks, and what it says about the step; the host never reads either.

    norm = sqrt(sum of g^2) / loss scale
    divisor = loss scale * max(1, norm / clip_norm)        found_inf = 1 where norm is inf or nan, else 0

Every logical element counts once: sharded gradients on the rank that owns them, whole ones (stage 0) on each
rank alone; parameters that tensor parallelism splits on every rank of its group, the others on its rank 0.
"""

from collections.abc import Mapping, Sequence

import torch

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.optimizer.update import StepControl, Update
from zprof.reference_engine.units.flat_unit import FlatUnit

#: What the bytes of the norm's all_reduce belong to.
NORM_UNIT = "gradient_norm"
_LARGEST = torch.finfo(torch.float32).max


class SquaresOverRanks:
    """Sums the squares of all gradients, in float64.

    Moves one all_reduce of 8 bytes in the data-parallel group (not in stage 0) and one in the tensor-parallel
    group.  Inf and nan survive the sum, so that all ranks learn of an overflow by the same number.
    """

    def __init__(
        self, gradients: Mapping[FlatUnit, UnitGradients], update: Update, *, comm: Comm, mp: Comm | None
    ) -> None:
        self._update = update
        counts_replicated = mp is None or mp.rank == 0
        self._counted = tuple(
            (unit_gradients, counted(unit, counts_replicated=counts_replicated))
            for unit, unit_gradients in gradients.items()
        )
        sharded = any(unit.policy.shard_optimizer for unit in gradients)
        groups = (comm if sharded else None, mp)
        self._groups = tuple(group for group in groups if group is not None and group.world_size > 1)
        self._device = next(iter(gradients)).full.device

    def sum(self) -> torch.Tensor:
        """One float64 element, equal on all ranks."""
        parts = [unit_gradients.owned[part] for unit_gradients, ranges in self._counted for part in ranges]
        if parts:
            total = self._update.sum_of_squares(parts)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self._device)
        for group in self._groups:
            group.all_reduce(total, NORM_UNIT).wait()
        return total


def counted(unit: FlatUnit, *, counts_replicated: bool) -> Sequence[slice]:
    """The parts of a unit's owned gradient that this rank adds to the norm; padding is zero, in or out."""
    owned = unit.owned_range
    if counts_replicated:
        return [slice(0, owned.stop - owned.start)]
    parts: list[slice] = []
    for slot, parameter in zip(unit.layout.slots, unit.parameters, strict=True):
        first = max(slot.offset, owned.start) - owned.start
        last = min(slot.offset + slot.numel, owned.stop) - owned.start
        if not getattr(parameter, "tensor_parallel_split", False) or first >= last:
            continue
        if parts and parts[-1].stop == first:
            first = parts.pop().start
        parts.append(slice(first, last))
    return parts


def norm_of(squares: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """The norm of the unscaled gradients, in float64; inf or nan where a gradient is."""
    norm = squares.sqrt()
    return norm if scale is None else norm / scale


def control_of(norm: torch.Tensor, scale: torch.Tensor | None, clip_norm: float | None) -> StepControl:
    """What to do with the step.

    A norm that is inf or nan skips it and leaves the factor at 1.  A divisor beyond float32 becomes the
    largest float32 number: gradients that large are then clipped to a little more than ``clip_norm``.
    """
    divisor = torch.ones_like(norm) if scale is None else scale.double()
    if clip_norm is not None:
        divisor = divisor * (norm / clip_norm).nan_to_num(nan=1.0, posinf=1.0).clamp(min=1.0)
    return StepControl(
        divisor=divisor.clamp(max=_LARGEST).float(), found_inf=norm.isfinite().logical_not().float()
    )
