"""Keep a unit's parameters in one flat storage: layout, this rank's shard, gathering and releasing the rest.

If parameters are sharded, the storage is resized: to full size by a gather, to zero by a release.  `.data` is
never swapped, so that tensors saved by autograd do not keep memory alive.  While its values are released, a
parameter has another Python class, which raises an error when it is used.

Parameters are stored one after the other.  The end is padded with zeros to a multiple of ranks x alignment,
so that all shards have the same size:

    | p0 | p1 | p2 ... | padding |        rank r owns elements [r, r + 1) x padded / ranks

A parameter may span several shards.  The layout is the same for all stages.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter  # type: ignore[attr-defined]
from torch.autograd.graph import increment_version

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.config import ZeroConfig


class FlatUnit:
    """Parameters that are gathered and reduced together: one module, dtype, ``requires_grad`` and group.

    ``full``     all parameters, ``layout.padded`` elements; its storage is empty at rest in stage 3
    ``shard``    this rank's part in the dtype of the parameters: its own memory in stage 3, else a view
    ``weights``  fp32 weights that the optimizer updates: all of them (stage 0) or this rank's part; None if
                 frozen
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
        """Take over the parameters and broadcast rank 0's values (collective).

        ``group`` is the index of the parameter group; it has no meaning for frozen parameters.
        """
        self.name = name
        self.group = group
        self.policy = get_policy(config.stage)
        self.parameters = tuple(parameter for _, parameter in parameters)
        self.trainable = self.parameters[0].requires_grad
        #: True if InputWatch will report the end of the module's backward; the unit must not be released
        #: before.
        self.watched = False
        self.layout = build_layout(
            ((parameter_name, parameter.shape) for parameter_name, parameter in parameters),
            ranks=comm.world_size,
            alignment=config.alignment,
        )
        self._comm = comm
        self._classes = tuple(type(parameter) for parameter in self.parameters)
        self._absent = make_ungathered_class(self)
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
        """This rank's range in the flat tensor."""
        return self.layout.shard(self._comm.rank)

    @property
    def owned_range(self) -> slice:
        """The range that this rank's optimizer updates."""
        return self.shard_range if self.policy.shard_optimizer else slice(0, self.layout.padded)

    @property
    def low_precision(self) -> torch.Tensor | None:
        """Destination of rounded fp32 master weights; None if the weights are the parameters."""
        if self.weights is None or self.weights.dtype == self.full.dtype:
            return None
        return self.shard.detach() if self.policy.shard_parameters else self.full[self.owned_range]

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the parts of a tensor of ``layout.padded`` elements, shaped like the parameters."""
        for slot in self.layout.slots:
            yield flat[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def gather(self) -> None:
        """Start to gather all parameters from their owners, unless they are present or already in flight."""
        if self._present:
            return
        self._resize(self.layout.padded)
        self._start_gather(self.shard.detach())

    def publish(self) -> None:
        """Send this rank's updated part to the other ranks and start to gather theirs (stages 1 and 2)."""
        self._start_gather(self.full[self.shard_range])

    def wait(self) -> None:
        """Block until the gather in flight is complete."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()
            for parameter, own in zip(self.parameters, self._classes, strict=True):
                parameter.__class__ = own

    def release(self) -> None:
        """Free the memory of gathered parameters; do nothing if each rank keeps them."""
        if self.policy.shard_parameters and self._present:
            self.wait()
            self._resize(0)
            self._present = False
            self._hide()

    def on_access(self, parameter: nn.Parameter) -> None:
        """Handle the use of a parameter without values: wait for its gather, or raise if there is none."""
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
        """Invalidate autograd graphs of the old values, after the optimizer wrote new ones."""
        if self.trainable:
            increment_version(self.parameters)
            self._versions = self._current_versions()

    def take_edits(self) -> None:
        """Pick up what the user has written into the parameters, which must be present.

        With 16-bit parameters, the master weights of written elements take the new values; all others keep
        their fp32 values.  A change through ``.data`` does not bump the version and is not detected.
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
        """Copy a parameter's fp32 values to the master weights if they round to the stored 16-bit values."""
        slot, owned = self.layout.slots[index], self.owned_range
        first, last = max(slot.offset, owned.start), min(slot.offset + slot.numel, owned.stop)
        if self.weights is None or self.low_precision is None or first >= last:
            return
        part = slice(first - owned.start, last - owned.start)
        weights, low = self.weights.detach()[part], self.low_precision[part]
        new = values.detach().reshape(-1)[first - slot.offset : last - slot.offset].to(weights)
        weights.copy_(torch.where(new.to(low.dtype) == low, new, weights))

    def master_weights(self) -> Iterator[torch.Tensor]:
        """Yield all parameters in fp32; call it on all ranks at once."""
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
        # The only place that sets .data: the model's own Parameter objects stay, only their memory moves.
        for view, parameter in zip(self.views(self.full), self.parameters, strict=True):
            parameter.data = view
            parameter.grad = None  # left by an earlier backward; the first one here would add to it

    def _make_shard(self) -> nn.Parameter:
        part = self.full[self.shard_range]
        return nn.Parameter(part.clone() if self.policy.shard_parameters else part, self.trainable)

    def _make_weights(self, values: torch.Tensor) -> nn.Parameter:
        if self.full.dtype != torch.float32:
            return nn.Parameter(values[self.owned_range].clone())
        return self.shard if self.policy.shard_optimizer else nn.Parameter(self.full)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleUnit:
    """A module's parameters, gathered together; several flat units if dtypes differ or some are frozen."""

    name: str
    module: nn.Module
    flat: tuple[FlatUnit, ...]

    def gather(self) -> None:
        """Start to gather the parameters that are not present."""
        for unit in self.flat:
            unit.gather()

    def wait(self) -> None:
        """Block until all parameters are present."""
        for unit in self.flat:
            unit.wait()

    def release(self) -> None:
        """Free the memory of the gathered parameters."""
        for unit in self.flat:
            unit.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Sharding policy of a ZeRO stage."""

    shard_optimizer: bool
    shard_gradients: bool
    shard_parameters: bool

    @property
    def gathers_after_step(self) -> bool:
        """True if each rank updates only its shard but keeps all parameters and must gather them again."""
        return self.shard_optimizer and not self.shard_parameters


def get_policy(stage: int) -> Policy:
    """Return the policy of a ZeRO stage; stage 0 is plain data parallelism."""
    return Policy(shard_optimizer=stage >= 1, shard_gradients=stage >= 2, shard_parameters=stage >= 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Position of one parameter in the flat storage; sizes in elements."""

    name: str
    shape: tuple[int, ...]
    numel: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one parameter that lies in one shard; positions and sizes in elements."""

    name: str
    parameter_offset: int
    shard_offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Placement of one unit's parameters.  ``numel`` counts logical elements, ``padded`` stored ones."""

    slots: tuple[Slot, ...]
    numel: int
    padded: int
    ranks: int

    @property
    def padding(self) -> int:
        """Elements that belong to no parameter; they are zero and stay zero."""
        return self.padded - self.numel

    @property
    def shard_numel(self) -> int:
        """Elements of one rank's shard."""
        return self.padded // self.ranks

    def shard(self, rank: int) -> slice:
        """Return the range of elements that a rank owns."""
        return slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """Return the parameter pieces in a rank's shard, without padding."""
        shard = self.shard(rank)
        return tuple(piece for slot in self.slots if (piece := _overlap_shard(slot, shard)) is not None)


def build_layout(shapes: Iterable[tuple[str, Sequence[int]]], *, ranks: int, alignment: int) -> Layout:
    """Lay out named shapes in the given order.

    Raises:
        ValueError: ``ranks`` or ``alignment`` is less than 1.
    """
    if ranks < 1 or alignment < 1:
        raise ValueError(f"ranks is {ranks} and alignment is {alignment}; both must be 1 or more")
    slots: list[Slot] = []
    offset = 0
    for name, shape in shapes:
        numel = math.prod(shape)
        slots.append(Slot(name=name, shape=tuple(shape), numel=numel, offset=offset))
        offset += numel
    block = ranks * alignment
    return Layout(slots=tuple(slots), numel=offset, padded=-(-offset // block) * block, ranks=ranks)


def _overlap_shard(slot: Slot, shard: slice) -> Piece | None:
    first = max(slot.offset, shard.start)
    last = min(slot.offset + slot.numel, shard.stop)
    if first >= last:
        return None
    return Piece(
        name=slot.name,
        parameter_offset=first - slot.offset,
        shard_offset=first - shard.start,
        numel=last - first,
    )


_METADATA_NAMES = frozenset(
    (
        *("shape", "dtype", "device", "layout", "ndim", "names", "name", "itemsize", "nbytes", "output_nr"),
        *("grad", "_grad", "grad_fn", "_grad_fn", "requires_grad", "requires_grad_", "retains_grad"),
        *("_version", "_base", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks"),
        *("register_hook", "register_post_accumulate_grad_hook", "untyped_storage", "data_ptr", "get_device"),
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size"),
        *("__len__", "__hash__", "__dir__"),
    )
)


class ParameterOwner(Protocol):
    """The unit that owns absent parameters."""

    def on_access(self, parameter: nn.Parameter) -> None:
        """Make the parameter's values available, or raise an error that says why they are not."""


class UngatheredParameter(nn.Parameter):
    """A parameter whose values are not present; see :func:`make_ungathered_class`."""

    owner: Callable[[], ParameterOwner | None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _reads_metadata_only(func):
            for parameter in _find_ungathered((args, kwargs or {})):
                _touch(parameter)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Parameter(shape={tuple(self.shape)}, values not gathered)"


def make_ungathered_class(owner_of_all: ParameterOwner) -> type[UngatheredParameter]:
    """Return the class for one unit's absent parameters; it holds a weak reference to the unit."""

    class UngatheredInUnit(UngatheredParameter):
        owner = staticmethod(ref(owner_of_all))

    return UngatheredInUnit


def _touch(parameter: UngatheredParameter) -> None:
    owner = type(parameter).owner()
    if owner is None:
        raise RuntimeError(
            "the engine of this parameter is gone: call model.synchronize(), or save, before that"
        )
    owner.on_access(parameter)


def _reads_metadata_only(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):  # a property's accessor
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name in _METADATA_NAMES or name.startswith(("is_", "_is_"))


def _find_ungathered(value: Any) -> list[UngatheredParameter]:
    if isinstance(value, torch.Tensor):
        return [value] if isinstance(value, UngatheredParameter) else []
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return []
    return [parameter for item in value for parameter in _find_ungathered(item)]
