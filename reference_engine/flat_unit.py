"""Keep a unit's parameters in one flat storage: this rank's shard, gather and release.

If parameters are sharded, a gather resizes the storage to its full size, and a release to zero.  `.data` is
never swapped, so that tensors saved by autograd do not keep memory alive.  While a parameter is released, it
has another Python class, which raises an error when its values are used.  ``flat_layout`` has the layout.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter  # type: ignore[attr-defined]
from torch.autograd.graph import increment_version

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_layout import build_layout

#: Attributes and methods of a tensor that need no values.
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


class FlatUnit:
    """Parameters that are gathered and reduced together: one module, dtype, ``requires_grad`` and group.

    ``full``     the unsharded parameters, ``layout.padded`` elements; in stage 3 its storage is empty at rest
    ``shard``    this rank's shard in the dtype of the parameters: separate memory in stage 3, else a view
    ``weights``  fp32 weights that the optimizer updates: all (stage 0) or this rank's shard; None if frozen
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
        """Move the parameters into flat storage and broadcast rank 0's values (collective).

        ``group`` is the index of the parameter group; it is ignored for frozen parameters.
        """
        self.name = name
        self.group = group
        self.policy = get_policy(config.stage)
        self.parameters = tuple(parameter for _, parameter in parameters)
        self.trainable = self.parameters[0].requires_grad
        #: True if InputWatch will report the end of the module's backward; do not release the unit before.
        self.watched = False
        self.layout = build_layout(
            ((parameter_name, parameter.shape) for parameter_name, parameter in parameters),
            ranks=comm.world_size,
            alignment=config.alignment,
        )
        #: This rank's range in the flat tensor, and the one that its optimizer updates.
        self.shard_range = self.layout.shard(comm.rank)
        sharded = self.policy.shard_optimizer
        self.owned_range = self.shard_range if sharded else slice(0, self.layout.padded)
        self._comm = comm
        self._classes = tuple(type(parameter) for parameter in self.parameters)
        self._ungathered_class = make_ungathered_class(self)
        self._pending: Handle | None = None
        self._is_gathered = True
        values = self._flatten()
        comm.broadcast(values, name).wait()
        self.full = values.to(config.dtype)
        self._point_parameters_at_full()
        part = self.full[self.shard_range]
        self.shard = nn.Parameter(part.clone() if self.policy.shard_parameters else part, self.trainable)
        self.weights = self._make_weights(values) if self.trainable else None
        self._versions = self._current_versions()
        self.release()

    @property
    def is_in_flight(self) -> bool:
        """True from the launch of an all-gather of the parameters until it was waited for."""
        return self._pending is not None

    @property
    def low_precision(self) -> torch.Tensor | None:
        """Destination of the rounded fp32 master weights; None if parameters are fp32."""
        if self.weights is None or self.weights.dtype == self.full.dtype:
            return None
        return self.shard.detach() if self.policy.shard_parameters else self.full[self.owned_range]

    def find_owned_part(self, index: int) -> slice | None:
        """Return a parameter's range within ``owned_range``, or None if it has no elements there."""
        owned, slot = self.owned_range, self.layout.slots[index]
        first, last = max(slot.offset, owned.start), min(slot.offset + slot.numel, owned.stop)
        return slice(first - owned.start, last - owned.start) if first < last else None

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the parts of a tensor of ``layout.padded`` elements, shaped like the parameters."""
        for slot in self.layout.slots:
            yield flat[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def gather(self) -> None:
        """Launch the all-gather of the parameters, unless they are gathered or in flight already."""
        if self._is_gathered:
            return
        self._resize(self.layout.padded)
        self._start_gather(self.shard.detach())

    def gather_updated(self) -> None:
        """Launch the all-gather of the updated shards after an optimizer step (stages 1 and 2)."""
        self._start_gather(self.full[self.shard_range])

    def wait(self) -> None:
        """Wait for the all-gather in flight, if any."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()
            for parameter, own in zip(self.parameters, self._classes, strict=True):
                parameter.__class__ = own

    def release(self) -> None:
        """Free the gathered parameters; does nothing if parameters are not sharded."""
        if self.policy.shard_parameters and self._is_gathered:
            self.wait()
            self._resize(0)
            self._is_gathered = False
            self._mark_ungathered()

    def on_access(self, parameter: nn.Parameter) -> None:
        """Handle the use of an ungathered parameter: wait for its all-gather, or raise if there is none."""
        if not self.policy.shard_parameters:
            self.wait()
            return
        slots = zip(self.parameters, self.layout.slots, strict=True)
        name = next(slot.name for own, slot in slots if own is parameter)
        raise RuntimeError(
            f"parameter {name} was used outside the forward of unit {self.name}, where stage 3 has released "
            "it: use it inside, choose units that enclose its uses, or read it in model.gathered()"
        )

    def bump_versions(self) -> None:
        """Bump the version counters after an update: autograd then rejects graphs of the old values."""
        if self.trainable:
            increment_version(self.parameters)
            self._versions = self._current_versions()

    def take_edits(self, *, compare: bool = False) -> None:
        """Pick up the user's edits of the parameters, which must be gathered.

        With 16-bit parameters, the master weights of edited elements take the new values; all others keep
        their fp32 values.  In-place edits are detected by their versions.  Edits through ``.data`` bump no
        version; ``compare`` finds them by comparing all elements.

        Raises:
            RuntimeError: a parameter's ``.data`` was replaced by a tensor of another shape.
        """
        if not self._is_gathered:
            return
        replaced = self._copy_replaced_data()
        versions = self._current_versions()
        if versions == self._versions and not replaced and not compare:
            return
        self._versions = versions
        if self.policy.shard_parameters:
            self.shard.detach().copy_(self.full[self.shard_range])
        if self.weights is not None and self.low_precision is not None:
            weights, low = self.weights.detach(), self.low_precision
            weights.copy_(torch.where(weights.to(low.dtype) == low, weights, low.float()))

    def set_master_weights(self, index: int, values: torch.Tensor) -> None:
        """Copy a parameter's fp32 values to the master weights if they round to the stored 16-bit values."""
        part = self.find_owned_part(index)
        if self.weights is None or self.low_precision is None or part is None:
            return
        weights, low = self.weights.detach()[part], self.low_precision[part]
        first = self.owned_range.start + part.start - self.layout.slots[index].offset
        new = values.detach().reshape(-1)[first : first + weights.numel()].to(weights)
        weights.copy_(torch.where(new.to(low.dtype) == low, new, weights))

    def master_weights(self) -> Iterator[torch.Tensor]:
        """Yield all parameters in fp32, unsharded (collective)."""
        if self.weights is None or self.low_precision is None:
            yield from self.views(self.full.float())
            return
        if not self.policy.shard_optimizer:
            yield from self.views(self.weights.detach())
            return
        gathered = torch.empty(self.layout.padded, dtype=torch.float32, device=self.full.device)
        self._comm.all_gather(gathered, self.weights.detach(), self.name).wait()
        yield from self.views(gathered)

    def store_weights(self) -> None:
        """Round the fp32 master weights into the parameters, after a checkpoint was loaded."""
        if self.weights is not None and self.low_precision is not None:
            self.low_precision.copy_(self.weights.detach())

    def _current_versions(self) -> list[int]:
        return [parameter._version for parameter in self.parameters]

    def _start_gather(self, shard: torch.Tensor) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(self.full):
            self._pending = self._comm.all_gather(self.full, shard, self.name)
        self._is_gathered = True
        self._mark_ungathered()

    def _mark_ungathered(self) -> None:
        for parameter in self.parameters:
            parameter.__class__ = self._ungathered_class

    def _resize(self, numel: int) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(self.full):
            self.full.untyped_storage().resize_(numel * self.full.element_size())

    def _flatten(self) -> torch.Tensor:
        device = self.parameters[0].device
        values = torch.zeros(self.layout.padded, dtype=torch.float32, device=device)
        for view, parameter in zip(self.views(values), self.parameters, strict=True):
            view.copy_(parameter.detach())
        return values

    @torch.no_grad()
    def _copy_replaced_data(self) -> bool:
        """Move parameters whose ``.data`` was replaced back into flat storage, with their new values."""
        start, itemsize, replaced = self.full.data_ptr(), self.full.element_size(), False
        for slot, parameter in zip(self.layout.slots, self.parameters, strict=True):
            if not slot.numel or parameter.data_ptr() == start + slot.offset * itemsize:
                continue
            if parameter.shape != slot.shape:
                raise RuntimeError(
                    f"the .data of parameter {slot.name} was replaced by a tensor of shape "
                    f"{tuple(parameter.shape)} instead of {slot.shape}: change the model before zero()"
                )
            view = self.full[slot.offset : slot.offset + slot.numel].view(slot.shape)
            view.copy_(parameter)
            parameter.data = view
            replaced = True
        return replaced

    def _point_parameters_at_full(self) -> None:
        # The model's Parameter objects stay, only their memory moves.
        for view, parameter in zip(self.views(self.full), self.parameters, strict=True):
            parameter.data = view
            parameter.grad = None  # left over from an earlier backward, to which the next one would add

    def _make_weights(self, values: torch.Tensor) -> nn.Parameter:
        if self.full.dtype != torch.float32:
            return nn.Parameter(values[self.owned_range].clone())
        return self.shard if self.policy.shard_optimizer else nn.Parameter(self.full)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleUnit:
    """A module's parameters; several flat units if dtypes or groups differ or some are frozen."""

    name: str
    module: nn.Module
    flat: tuple[FlatUnit, ...]

    def gather(self) -> None:
        """Launch the all-gathers of all flat units."""
        for unit in self.flat:
            unit.gather()

    def wait(self) -> None:
        """Wait for the all-gathers in flight."""
        for unit in self.flat:
            unit.wait()

    def release(self) -> None:
        """Free the gathered parameters."""
        for unit in self.flat:
            unit.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a ZeRO stage shards."""

    shard_optimizer: bool
    shard_gradients: bool
    shard_parameters: bool

    @property
    def gathers_after_step(self) -> bool:
        """True if each rank keeps all parameters but updates only its shard (stages 1 and 2)."""
        return self.shard_optimizer and not self.shard_parameters


def get_policy(stage: int) -> Policy:
    """Return the policy of a ZeRO stage; stage 0 is plain data parallelism."""
    return Policy(shard_optimizer=stage >= 1, shard_gradients=stage >= 2, shard_parameters=stage >= 3)


class ParameterOwner(Protocol):
    """The unit that owns ungathered parameters."""

    def on_access(self, parameter: nn.Parameter) -> None:
        """Make the parameter's values available, or raise an error with the reason."""


class UngatheredParameter(nn.Parameter):
    """A parameter without values: released, or its all-gather is in flight."""

    owner: Callable[[], ParameterOwner | None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _reads_metadata_only(func):
            for parameter in _find_ungathered((args, kwargs or {})):
                owner = type(parameter).owner()
                if owner is None:
                    raise RuntimeError(
                        "the engine of this parameter no longer exists: call model.synchronize(), or save "
                        "the model, before deleting it"
                    )
                owner.on_access(parameter)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Parameter(shape={tuple(self.shape)}, values not gathered)"


def make_ungathered_class(unit: ParameterOwner) -> type[UngatheredParameter]:
    """Make the class of one unit's ungathered parameters; it holds a weak reference to the unit."""

    class UngatheredInUnit(UngatheredParameter):
        owner = staticmethod(ref(unit))

    return UngatheredInUnit


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
