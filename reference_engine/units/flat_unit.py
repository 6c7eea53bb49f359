"""One unit's parameters in one flat storage, and the part of it that this rank keeps.

The parameters are views into the flat tensor, made once.  Where parameters are sharded, the tensor's
storage is resized: to its full size by a gather, to nothing by a release.  Tensors that autograd saved
share that storage, so memory goes back at once, and the next gather makes them valid again.  (Swapping
``.data`` instead frees nothing while autograd holds a view.)

Parameters become contiguous and of the config's dtype, whatever they were (channels_last, float64 norms).
While their values are not here, or still on their way, touching them is an error, or waits; see
:mod:`~zprof.reference_engine.units.absent`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter  # type: ignore[attr-defined]
from torch.autograd.graph import increment_version

from zprof.reference_engine.comm import Comm, Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.policy import policy_of
from zprof.reference_engine.units.absent import absent_class
from zprof.reference_engine.units.layout import layout_of


class FlatUnit:
    """Parameters that are gathered and reduced together: one module, dtype, ``requires_grad`` and group.

    ``full``     all parameters, ``layout.padded`` elements; storage empty at rest in stage 3
    ``shard``    this rank's part in the dtype of the parameters: its own memory in stage 3, else a view
    ``weights``  what the optimizer updates: fp32, all of it (stage 0) or this rank's part; None if frozen
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[tuple[str, nn.Parameter]],
        *,
        config: ZeroConfig,
        comm: Comm,
        group: int = 0,
    ) -> None:
        """Take over the parameters; their values become those of rank 0 (collective).

        ``group`` is the index of the parameter group; without a meaning if they are frozen.
        """
        self.name = name
        self.group = group
        self.policy = policy_of(config.stage)
        self.parameters = tuple(parameter for _, parameter in parameters)
        self.trainable = self.parameters[0].requires_grad
        #: Somebody will say when the backward of its module is over; until then it must not be released.
        self.watched = False
        self.layout = layout_of(
            ((parameter_name, parameter.shape) for parameter_name, parameter in parameters),
            ranks=comm.world_size,
            alignment=config.alignment,
        )
        self._comm = comm
        self._classes = tuple(type(parameter) for parameter in self.parameters)
        self._absent = absent_class(self)
        self._pending: Handle | None = None
        self._present = True
        values = self._flatten()
        comm.broadcast(values, name).wait()
        self.full = values.to(config.dtype)
        self._point_parameters()
        self.shard = self._make_shard()
        self.weights = self._make_weights(values) if self.trainable else None
        self._versions = self._current_versions()
        self.release()

    @property
    def shard_range(self) -> slice:
        """This rank's part of the flat tensor."""
        return self.layout.shard(self._comm.rank)

    @property
    def owned_range(self) -> slice:
        """The part that this rank's optimizer updates."""
        return self.shard_range if self.policy.shard_optimizer else slice(0, self.layout.padded)

    @property
    def low_precision(self) -> torch.Tensor | None:
        """Where updated fp32 master weights are rounded to; None where the weights are the parameters."""
        if self.weights is None or self.weights.dtype == self.full.dtype:
            return None
        return self.shard.detach() if self.policy.shard_parameters else self.full[self.owned_range]

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Parts of a tensor of ``layout.padded`` elements, shaped like the parameters."""
        for slot in self.layout.slots:
            yield flat[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def gather(self) -> None:
        """Start to fetch all parameters from their owners, unless they are here or on their way."""
        if self._present:
            return
        self._resize(self.layout.padded)
        self._start_gather(self.shard.detach())

    def publish(self) -> None:
        """Tell the other ranks this rank's updated part, and start to fetch theirs (stages 1 and 2)."""
        self._start_gather(self.full[self.shard_range])

    def wait(self) -> None:
        """Block until a gather that was started is complete."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()
            for parameter, own in zip(self.parameters, self._classes, strict=True):
                parameter.__class__ = own

    def release(self) -> None:
        """Give the memory of gathered parameters back; does nothing where each rank keeps them."""
        if self.policy.shard_parameters and self._present:
            self.wait()
            self._resize(0)
            self._present = False
            self._hide()

    def touched(self, parameter: nn.Parameter) -> None:
        """A parameter is used whose values are not here: wait for them, or say why they will not come."""
        if not self.policy.shard_parameters:
            self.wait()
            return
        slots = zip(self.parameters, self.layout.slots, strict=True)
        name = next(slot.name for own, slot in slots if own is parameter)
        raise RuntimeError(
            f"parameter {name} was used outside the forward of unit {self.name}, where stage 3 has none of "
            "its values: use it inside, choose units that enclose its uses, or read it in model.gathered()"
        )

    def changed(self) -> None:
        """The optimizer has new values: a graph of the old ones must not be used any more."""
        if self.trainable:
            increment_version(self.parameters)
            self._versions = self._current_versions()

    def take_edits(self) -> None:
        """Take over what the user has written into the parameters, which must be here.

        In 16 bits the master weights of elements that were written become their values; the others keep their
        fp32 ones.  A change through ``.data`` has no version and is not seen.
        """
        versions = self._current_versions()
        if versions == self._versions or not self._present:
            return
        self._versions = versions
        if self.policy.shard_parameters:
            self.shard.detach().copy_(self.full[self.shard_range])
        if self.weights is not None and self.low_precision is not None:
            weights, low = self.weights.detach(), self.low_precision
            weights.copy_(torch.where(weights.to(low.dtype) == low, weights, low.float()))

    def set_master_weights(self, index: int, values: torch.Tensor) -> None:
        """Give a parameter's fp32 values to this rank's master weights where they round to what it has."""
        slot, owned = self.layout.slots[index], self.owned_range
        first, last = max(slot.offset, owned.start), min(slot.offset + slot.numel, owned.stop)
        if self.weights is None or self.low_precision is None or first >= last:
            return
        part = slice(first - owned.start, last - owned.start)
        weights, low = self.weights.detach()[part], self.low_precision[part]
        new = values.detach().reshape(-1)[first - slot.offset : last - slot.offset].to(weights)
        weights.copy_(torch.where(new.to(low.dtype) == low, new, weights))

    def master_weights(self) -> Iterator[torch.Tensor]:
        """Yield all parameters in fp32, on all ranks at once."""
        if self.weights is None or self.low_precision is None:
            yield from self.views(self.full.float())
            return
        if not self.policy.shard_optimizer:
            yield from self.views(self.weights.detach())
            return
        whole = torch.empty(self.layout.padded, dtype=torch.float32, device=self.full.device)
        self._comm.all_gather(whole, self.weights.detach(), self.name).wait()
        yield from self.views(whole)

    def store_weights(self) -> None:
        """Round fp32 master weights that were set from outside into the parameters."""
        if self.weights is not None and self.low_precision is not None:
            self.low_precision.copy_(self.weights.detach())

    def _current_versions(self) -> list[int]:
        return [parameter._version for parameter in self.parameters]

    def _start_gather(self, shard: torch.Tensor) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(self.full):
            self._pending = self._comm.all_gather(self.full, shard, self.name)
        self._present = True
        self._hide()

    def _hide(self) -> None:
        for parameter in self.parameters:
            parameter.__class__ = self._absent

    def _resize(self, numel: int) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(self.full):
            self.full.untyped_storage().resize_(numel * self.full.element_size())

    def _flatten(self) -> torch.Tensor:
        device = self.parameters[0].device
        values = torch.zeros(self.layout.padded, dtype=torch.float32, device=device)
        for view, parameter in zip(self.views(values), self.parameters, strict=True):
            view.copy_(parameter.detach())
        return values

    def _point_parameters(self) -> None:
        # The only time that .data is set: the model's own Parameter objects stay, only their memory moves.
        for view, parameter in zip(self.views(self.full), self.parameters, strict=True):
            parameter.data = view
            parameter.grad = None  # of an earlier backward; it would be added to the first

    def _make_shard(self) -> nn.Parameter:
        part = self.full[self.shard_range]
        return nn.Parameter(part.clone() if self.policy.shard_parameters else part, self.trainable)

    def _make_weights(self, values: torch.Tensor) -> nn.Parameter:
        if self.full.dtype != torch.float32:
            return nn.Parameter(values[self.owned_range].clone())
        return self.shard if self.policy.shard_optimizer else nn.Parameter(self.full)
