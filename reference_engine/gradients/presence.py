"""Which parameters of a unit had a gradient in a step: torch's optimizers leave the others alone.

A parameter that has no gradient on any rank is not updated.  One that has a gradient on some ranks only is
updated by the mean in which the other ranks count as zero.  Where this rank has a gradient, nothing more is
needed.  Where it has none, it must learn if another rank had one, and the sum over the ranks itself says so,
without a collective and without a byte more (IEEE 754, round to nearest):

    -0.0 + -0.0 = -0.0        -0.0 + x = x for every other x        +0.0 + -0.0 = +0.0

A rank without a gradient sends -0.0 in the first element of the parameter in every shard; a rank with one
sends there what it has, but never -0.0.  So the sum is -0.0 if and only if no rank had a gradient.  The host
does not read it.  gloo adds by these rules; a switch that adds (SHARP) need not, so that transports between
GPUs are tried first (:func:`keeps_sign_of_zero`).
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
    """First elements of one parameter in shards: where they are in what is sent, and in the flat tensor."""

    parameter: int
    sent: slice
    flat: slice

    def pairs(self) -> list[tuple[int, int]]:
        """The same, one by one."""
        sent = range(self.sent.start, self.sent.stop, self.sent.step or 1)
        return list(zip(sent, range(self.flat.start, self.flat.stop, self.flat.step or 1), strict=True))


class Presence:
    """Notes a unit's gradients on this rank, and reads from their sum if another rank had one."""

    def __init__(self, unit: FlatUnit, *, sign_kept: bool = True) -> None:
        """``sign_kept``: sums keep the sign of zero; if not, a missing gradient is a gradient of zero."""
        self._unit = unit
        self._sign_kept = sign_kept
        self._had: set[int] = set()
        self._places: dict[Cut | None, tuple[_FirstElements, ...]] = {}

    def add(self, index: int) -> None:
        """Note that the parameter of this index has a gradient in this step."""
        self._had.add(index)

    def clear(self) -> None:
        """Start a new step."""
        self._had.clear()

    def average(
        self, sent: torch.Tensor, divisor: int, cut: Cut | None = None, *, first_sum: bool = True
    ) -> None:
        """Divide gradients that are about to be summed, and write into them what this rank has.

        ``sent`` holds elements ``cut`` of every shard, one shard after the other; None: the flat tensor.
        Without ``first_sum`` it already holds a sum over the ranks, whose signs of zero stay as they are.
        Allocates nothing.
        """
        sent.div_(divisor)
        had = []
        for place in self._first_elements(cut):
            if place.parameter in self._had:
                had.append(sent[place.sent])
            elif first_sum and self._sign_kept:
                sent[place.sent].fill_(-0.0)
        if len(self._had) == len(self._unit.parameters) and (cut is None or cut.first == 0):
            # The first elements of all shards at once: single ones can be one kernel together, others cannot.
            had = [one for one in had if one.numel() == 1]
            sent[:: max(sent.numel() // self._unit.layout.ranks, 1)].add_(0.0)
        if had:
            torch._foreach_add_(had, 0.0)  # -0.0 becomes 0.0, everything else stays as it is

    def keep_signs(self, rounded: torch.Tensor, exact: torch.Tensor, cut: Cut, *, shard: int | None) -> None:
        """Repair signs of zero where a sum was rounded to a smaller type: a small number may become -0.0.

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
                    zero = exact[sent - begin].eq_(0.0)  # nothing is allocated: exact is not read any more
                    zero.neg_().add_(0.5).mul_(0.0)  # -0.0 where it was zero, else 0.0
                    rounded[flat - base].add_(zero)

    def lacking_here(self) -> list[int]:
        """Return the parameters without a gradient on this rank in this step, by index."""
        return [index for index in range(len(self._unit.parameters)) if index not in self._had]

    def lacking_everywhere(self, index: int, first: torch.Tensor) -> torch.Tensor:
        """Return 1.0 if no rank had a gradient of the parameter, else 0.0, as a float32 scalar on the device.

        ``first`` is the mean of the first element of the parameter in a shard.
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
    """Find out if sums over the ranks keep the sign of zero (collective; waits for the device).

    The same kind of collective as in a step, of the same sizes: a library chooses its algorithm by these.
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
        begin, end = shard + 1, -(-(slot.offset + slot.numel) // size)  # shards that begin inside of it
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
