"""Track which parameters of a unit had a gradient in a step: torch's optimizers do not update the others.

A parameter without a gradient on any rank is not updated.  If only some ranks have a gradient, the parameter
is updated with the mean, in which the other ranks count as zero.  So a rank without a gradient must learn if
another rank had one.  The reduced gradient itself carries this bit, without another collective or extra bytes
(IEEE 754, round to nearest):

    -0.0 + -0.0 = -0.0        -0.0 + x = x for every other x        +0.0 + -0.0 = +0.0

A rank without a gradient contributes -0.0 for the parameter's first element in every shard.  A rank with a
gradient contributes its value, but never -0.0.  So the sum is -0.0 if and only if no rank had a gradient.
The host does not read it.  gloo follows these rules.  In-network reduction (SHARP) may not, so transports
between GPUs are probed first (:func:`probe_sign_of_zero`).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.storage import ElementRange

PROBE_UNIT = "sign_of_zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstElements:
    """Positions of a parameter's first elements in its shards, in the reduced buffer and the flat tensor."""

    parameter: int
    buffer: slice
    flat: slice

    def pairs(self) -> list[tuple[int, int]]:
        """Return the (buffer, flat) position of each element."""
        buffer = range(self.buffer.start, self.buffer.stop, self.buffer.step or 1)
        return list(zip(buffer, range(self.flat.start, self.flat.stop, self.flat.step or 1), strict=True))


class Presence:
    """Records which gradients this rank has, and reads from the reduced gradient if another rank had one."""

    def __init__(self, unit: FlatUnit, *, keeps_sign: bool = True) -> None:
        """Set ``keeps_sign`` if sums keep the sign of zero; otherwise a missing gradient counts as zero."""
        self._unit = unit
        self._keeps_sign = keeps_sign
        self._with_gradient: set[int] = set()
        self._first_elements_by_piece: dict[ElementRange | None, tuple[_FirstElements, ...]] = {}

    def add(self, index: int) -> None:
        """Record that this parameter has a gradient in this step."""
        self._with_gradient.add(index)

    def clear(self) -> None:
        """Start a new step."""
        self._with_gradient.clear()

    def average(
        self, buffer: torch.Tensor, divisor: int, piece: ElementRange | None = None, *, first_sum: bool = True
    ) -> None:
        """Divide gradients before their reduction, and encode in their signs which ones this rank has.

        ``buffer`` holds elements ``piece`` of every shard, one shard after the other, or the flat tensor if
        ``piece`` is None.  If ``first_sum`` is false, it already holds a sum over the ranks, whose signs of
        zero are kept.  Allocates nothing.
        """
        buffer.div_(divisor)
        with_gradient = []
        for elements in self._first_elements(piece):
            if elements.parameter in self._with_gradient:
                with_gradient.append(buffer[elements.buffer])
            elif first_sum and self._keeps_sign:
                buffer[elements.buffer].fill_(-0.0)
        if len(self._with_gradient) == len(self._unit.parameters) and (piece is None or piece.first == 0):
            # One strided add covers the first elements of all shards.  The others are single elements, which
            # _foreach_add_ fuses into one kernel; it cannot fuse larger views.
            with_gradient = [view for view in with_gradient if view.numel() == 1]
            buffer[:: max(buffer.numel() // self._unit.layout.ranks, 1)].add_(0.0)
        if with_gradient:
            torch._foreach_add_(with_gradient, 0.0)  # turns -0.0 into 0.0 and keeps every other value

    def restore_signs(
        self, rounded: torch.Tensor, exact: torch.Tensor, piece: ElementRange, *, shard: int | None
    ) -> None:
        """Restore signs of zero after rounding to a smaller dtype, which may turn a small number into -0.0.

        ``exact`` holds elements ``piece`` of one shard, or of every shard if ``shard`` is None; ``rounded``
        is the gradient of that shard, or of the entire unit.  Overwrites ``exact``.
        """
        if rounded.dtype == exact.dtype:
            return
        start, base = (
            (0, 0) if shard is None else (shard * piece.elements, shard * self._unit.layout.shard_numel)
        )
        for elements in self._first_elements(piece):
            for position, flat in [] if elements.parameter in self._with_gradient else elements.pairs():
                if 0 <= position - start < exact.numel():
                    # in place: exact is not read again, and nothing is allocated
                    zero = exact[position - start].eq_(0.0)
                    zero.neg_().add_(0.5).mul_(0.0)  # -0.0 if it was zero, else 0.0
                    rounded[flat - base].add_(zero)

    def list_missing_locally(self) -> list[int]:
        """List the indices of parameters without a gradient on this rank in this step."""
        return [index for index in range(len(self._unit.parameters)) if index not in self._with_gradient]

    def flag_missing_everywhere(self, index: int, first: torch.Tensor) -> torch.Tensor:
        """Return 1.0 if no rank had a gradient for the parameter, else 0.0: a float32 scalar on the device.

        ``first`` is the mean of the parameter's first element in a shard.
        """
        if self._keeps_sign:
            return _is_negative_zero(first).float()
        name = self._unit.layout.slots[index].name
        warnings.warn(
            f"parameter {name} had no gradient on this rank; another rank may have had one, but reductions "
            "on this network do not keep the sign of zero, so a gradient of zero is used",
            stacklevel=2,
        )
        return torch.zeros((), dtype=torch.float32, device=first.device)

    def _first_elements(self, piece: ElementRange | None) -> tuple[_FirstElements, ...]:
        if piece not in self._first_elements_by_piece:
            self._first_elements_by_piece[piece] = tuple(_find_first_elements(self._unit, piece))
        return self._first_elements_by_piece[piece]


def probe_sign_of_zero(units: Sequence[FlatUnit], dtype: torch.dtype, comm: Comm) -> bool:
    """Return True if sums over the ranks keep the sign of zero (collective; waits for the device).

    Runs the same kinds of collectives as a step, with the same sizes, because libraries choose their
    algorithm by kind and size.
    """
    keeps_sign = True
    device = units[0].full.device
    for elements in sorted({unit.layout.padded for unit in units}):
        zeros = torch.full((elements,), -0.0, dtype=dtype, device=device)
        if units[0].policy.shard_optimizer:
            total = torch.empty(elements // comm.world_size, dtype=dtype, device=device)
            comm.reduce_scatter(total, zeros, PROBE_UNIT).wait()
        else:
            total = zeros
            comm.all_reduce(total, PROBE_UNIT).wait()
        keeps_sign = bool(_is_negative_zero(total).all()) and keeps_sign
    return keeps_sign


def _find_first_elements(unit: FlatUnit, piece: ElementRange | None) -> list[_FirstElements]:
    size = unit.layout.shard_numel
    first, elements = (0, size) if piece is None else (piece.first, piece.elements)
    first_elements = []
    for index, slot in enumerate(unit.layout.slots):
        if slot.numel == 0:
            continue
        shard, offset = divmod(slot.offset, size)
        if first <= offset < first + elements:
            position = shard * elements + offset - first
            flat = slice(slot.offset, slot.offset + 1)
            first_elements.append(
                _FirstElements(parameter=index, buffer=slice(position, position + 1), flat=flat)
            )
        # shards that start inside the parameter
        start, end = shard + 1, -(-(slot.offset + slot.numel) // size)
        if first == 0 and start < end:
            first_elements.append(
                _FirstElements(
                    parameter=index,
                    buffer=slice(start * elements, (end - 1) * elements + 1, elements),
                    flat=slice(start * size, (end - 1) * size + 1, size),
                )
            )
    return first_elements


def _is_negative_zero(values: torch.Tensor) -> torch.Tensor:
    return torch.signbit(values) & (values == 0)
