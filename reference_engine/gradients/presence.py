"""Track which parameters of a unit had a gradient in a step: torch's optimizers do not update the others.

A parameter without a gradient on any rank is not updated.  If only some ranks have a gradient, the parameter
is updated with the mean in which the other ranks count as zero.  A rank that has a gradient needs to know
nothing more.  A rank that has none must learn if another rank had one.  The sum over the ranks itself carries
that, without another collective and without extra bytes (IEEE 754, round to nearest):

    -0.0 + -0.0 = -0.0        -0.0 + x = x for every other x        +0.0 + -0.0 = +0.0

A rank without a gradient sends -0.0 in the parameter's first element in every shard.  A rank with a gradient
sends its value there, but never -0.0.  So the sum is -0.0 if and only if no rank had a gradient.  The host
does not read it.  gloo adds by these rules.  A switch that adds (SHARP) need not, so transports between GPUs
are probed first (:func:`probe_sign_of_zero`).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.storage import Cut

PROBE_UNIT = "sign_of_zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstElements:
    """First elements of one parameter in shards: positions in the sent tensor and in the flat tensor."""

    parameter: int
    sent: slice
    flat: slice

    def pairs(self) -> list[tuple[int, int]]:
        """Return the (sent, flat) positions one by one."""
        sent = range(self.sent.start, self.sent.stop, self.sent.step or 1)
        return list(zip(sent, range(self.flat.start, self.flat.stop, self.flat.step or 1), strict=True))


class Presence:
    """Record a unit's gradients on this rank, and read from their sum if another rank had one."""

    def __init__(self, unit: FlatUnit, *, sign_kept: bool = True) -> None:
        """With ``sign_kept``, sums keep the sign of zero; without it, a missing gradient counts as zero."""
        self._unit = unit
        self._sign_kept = sign_kept
        self._had: set[int] = set()
        self._places: dict[Cut | None, tuple[_FirstElements, ...]] = {}

    def add(self, index: int) -> None:
        """Record that this parameter has a gradient in this step."""
        self._had.add(index)

    def clear(self) -> None:
        """Start a new step."""
        self._had.clear()

    def average(
        self, sent: torch.Tensor, divisor: int, cut: Cut | None = None, *, first_sum: bool = True
    ) -> None:
        """Divide gradients that are about to be summed, and encode in their signs which ones this rank has.

        ``sent`` holds elements ``cut`` of every shard, one shard after the other; with None it is the flat
        tensor. If ``first_sum`` is false, ``sent`` already holds a sum over the ranks, whose signs of zero
        are kept. Allocates nothing.
        """
        sent.div_(divisor)
        had = []
        for place in self._first_elements(cut):
            if place.parameter in self._had:
                had.append(sent[place.sent])
            elif first_sum and self._sign_kept:
                sent[place.sent].fill_(-0.0)
        if len(self._had) == len(self._unit.parameters) and (cut is None or cut.first == 0):
            # One strided add covers the first elements of all shards.  What remains are single elements,
            # which _foreach_add_ fuses into one kernel; larger views it cannot fuse.
            had = [one for one in had if one.numel() == 1]
            sent[:: max(sent.numel() // self._unit.layout.ranks, 1)].add_(0.0)
        if had:
            torch._foreach_add_(had, 0.0)  # -0.0 becomes 0.0, every other value stays as it is

    def keep_signs(self, rounded: torch.Tensor, exact: torch.Tensor, cut: Cut, *, shard: int | None) -> None:
        """Restore signs of zero after rounding to a smaller type, which may turn a small number into -0.0.

        ``exact`` holds elements ``cut`` of one shard, or of every shard if ``shard`` is None; ``rounded`` is
        the gradient of that shard, or of the whole unit.  Overwrites ``exact``.
        """
        if rounded.dtype == exact.dtype:
            return
        begin, base = (
            (0, 0) if shard is None else (shard * cut.elements, shard * self._unit.layout.shard_numel)
        )
        for place in self._first_elements(cut):
            for sent, flat in [] if place.parameter in self._had else place.pairs():
                if 0 <= sent - begin < exact.numel():
                    # in place: exact is not read again, and nothing is allocated
                    zero = exact[sent - begin].eq_(0.0)
                    zero.neg_().add_(0.5).mul_(0.0)  # -0.0 if it was zero, else 0.0
                    rounded[flat - base].add_(zero)

    def missing_here(self) -> list[int]:
        """Return the indices of parameters without a gradient on this rank in this step."""
        return [index for index in range(len(self._unit.parameters)) if index not in self._had]

    def missing_everywhere(self, index: int, first: torch.Tensor) -> torch.Tensor:
        """Return 1.0 if no rank had a gradient for the parameter, else 0.0: a float32 scalar on the device.

        ``first`` is the mean of the parameter's first element in a shard.
        """
        if self._sign_kept:
            return _is_negative_zero(first).float()
        name = self._unit.layout.slots[index].name
        warnings.warn(
            f"parameter {name} had no gradient on this rank, and the network does not tell if another rank "
            "had one: it is updated as by a gradient of zero",
            stacklevel=2,
        )
        return torch.zeros((), dtype=torch.float32, device=first.device)

    def _first_elements(self, cut: Cut | None) -> tuple[_FirstElements, ...]:
        if cut not in self._places:
            self._places[cut] = tuple(_find_first_elements(self._unit, cut))
        return self._places[cut]


def probe_sign_of_zero(units: Sequence[FlatUnit], dtype: torch.dtype, comm: Comm) -> bool:
    """Return whether sums over the ranks keep the sign of zero (collective; waits for the device).

    Runs the same kind of collective as a step, with the same sizes, because libraries choose their algorithm
    by these.
    """
    kept = True
    device = units[0].full.device
    for elements in sorted({unit.layout.padded for unit in units}):
        zeros = torch.full((elements,), -0.0, dtype=dtype, device=device)
        if units[0].policy.shard_optimizer:
            total = torch.empty(elements // comm.world_size, dtype=dtype, device=device)
            comm.reduce_scatter(total, zeros, PROBE_UNIT).wait()
        else:
            total = zeros
            comm.all_reduce(total, PROBE_UNIT).wait()
        kept = bool(_is_negative_zero(total).all()) and kept
    return kept


def _find_first_elements(unit: FlatUnit, cut: Cut | None) -> list[_FirstElements]:
    size = unit.layout.shard_numel
    first, elements = (0, size) if cut is None else (cut.first, cut.elements)
    found = []
    for index, slot in enumerate(unit.layout.slots):
        if slot.numel == 0:
            continue
        shard, offset = divmod(slot.offset, size)
        if first <= offset < first + elements:
            sent = shard * elements + offset - first
            flat = slice(slot.offset, slot.offset + 1)
            found.append(_FirstElements(parameter=index, sent=slice(sent, sent + 1), flat=flat))
        # shards that start inside the parameter
        begin, end = shard + 1, -(-(slot.offset + slot.numel) // size)
        if first == 0 and begin < end:
            found.append(
                _FirstElements(
                    parameter=index,
                    sent=slice(begin * elements, (end - 1) * elements + 1, elements),
                    flat=slice(begin * size, (end - 1) * size + 1, size),
                )
            )
    return found


def _is_negative_zero(values: torch.Tensor) -> torch.Tensor:
    return torch.signbit(values) & (values == 0)
