"""Sharding: FSDP1's flat parameters, and FSDP2's shards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import TORCH, PythonFrame
from benchmarks.snapshot_truth.gradients import become_gradient
from benchmarks.snapshot_truth.operators import Operators
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from zprof.model.tenants import Tenant

COMMUNICATION = Tenant.COMMUNICATION_BUFFERS
_GATHER_STREAM, _REDUCE_STREAM = 0x55D0_1000, 0x55D0_2000
_FLAT = f"{TORCH}distributed/fsdp/_flat_param.py"
_RUNTIME = f"{TORCH}distributed/fsdp/_runtime_utils.py"
_SHARD = f"{TORCH}distributed/fsdp/_fully_shard/"


class ShardingHooks(Protocol):
    """Called around each unit; the unit -1 is the root (embedding, final norm and head)."""

    def pre_forward(self, ops: Operators, unit: int) -> None: ...
    def post_forward(self, ops: Operators, unit: int) -> None: ...
    def pre_backward(self, ops: Operators, unit: int) -> None: ...
    def post_backward(self, ops: Operators, unit: int) -> None: ...
    def end_forward(self, ops: Operators) -> None: ...


class NoSharding:
    """Nothing is gathered."""

    def pre_forward(self, ops: Operators, unit: int) -> None: ...
    def post_forward(self, ops: Operators, unit: int) -> None: ...
    def pre_backward(self, ops: Operators, unit: int) -> None: ...
    def post_backward(self, ops: Operators, unit: int) -> None: ...
    def end_forward(self, ops: Operators) -> None: ...


def group_by_unit(parameters: Sequence[SimulatedParameter]) -> dict[int, list[SimulatedParameter]]:
    """Return the parameters of each layer, and of the root as -1."""
    units: dict[int, list[SimulatedParameter]] = {}
    for parameter in parameters:
        units.setdefault(parameter.shape.layer, []).append(parameter)
    return units


class FlatSharding:
    """FSDP1 with full sharding: one flat parameter per unit."""

    def __init__(
        self, device: TracedDevice, parameters: Sequence[SimulatedParameter], world_size: int
    ) -> None:
        self._device, self._units = device, group_by_unit(parameters)
        self._gathered: dict[int, Tensor] = {}
        self._arrived: dict[int, list[Tensor]] = {unit: [] for unit in self._units}
        #: The flat shards, which the optimizer updates.
        self.shards: dict[int, SimulatedParameter] = {}
        self._padded: dict[int, int] = {}
        self._world_size = world_size
        for unit in sorted(self._units, reverse=True):
            self._flatten(unit)

    def _flatten(self, unit: int) -> None:
        """Replace the parameters of a unit by a shard of their concatenation."""
        device, members = self._device, self._units[unit]
        numel = sum(each.numel for each in members)
        self._padded[unit] = -(-numel // self._world_size) * self._world_size
        size = members[0].element_bytes
        init = (
            PythonFrame(f"{TORCH}distributed/fsdp/fully_sharded_data_parallel.py", 502, "__init__"),
            PythonFrame(f"{TORCH}distributed/fsdp/_init_utils.py", 625, "_init_param_handle_from_params"),
        )
        handle = (
            PythonFrame(_FLAT, 583, "__init__"),
            PythonFrame(_FLAT, 762, "_init_flat_param_and_metadata"),
            PythonFrame(_FLAT, 898, "flatten_tensors_into_flat_param"),
            PythonFrame(_FLAT, 893, "flatten_tensors"),
        )
        with device.call(*init, *handle):
            flat = device.alloc(numel * size, Tenant.PARAMETERS, "unsharded", "cat", also=(COMMUNICATION,))
        for member in members:
            if member.tensor is not None:
                device.drop(member.tensor)
                member.tensor = None
        shape = replace(members[0].shape, name=f"flat{unit}", shape=(self._padded[unit] // self._world_size,))
        shard = self.shards[unit] = SimulatedParameter(shape, size)
        with device.call(*init, PythonFrame(_FLAT, 958, "shard"), PythonFrame(_FLAT, 1136, "_get_shard")):
            shard.tensor = device.alloc(shard.bytes, Tenant.PARAMETERS, "shard", "clone")
        device.drop(flat)

    def _gather(self, unit: int, hook: tuple[PythonFrame, ...]) -> None:
        if unit in self._gathered:
            return
        frames = (
            *hook,
            PythonFrame(_RUNTIME, 302, "_unshard"),
            PythonFrame(_FLAT, 1372, "unshard"),
            PythonFrame(_FLAT, 1408, "_alloc_padded_unsharded_flat_param"),
            PythonFrame(f"{TORCH}distributed/utils.py", 186, "_alloc_storage"),
        )
        size = self._padded[unit] * self.shards[unit].element_bytes
        with self._device.call(*frames):
            self._gathered[unit] = self._device.alloc(
                size, COMMUNICATION, "gathered_param", "resize_", stream=_GATHER_STREAM
            )

    def pre_forward(self, ops: Operators, unit: int) -> None:
        frames = (
            PythonFrame(_RUNTIME, 385, "_pre_forward"),
            PythonFrame(_RUNTIME, 422, "_pre_forward_unshard"),
        )
        self._gather(unit, frames)

    def post_forward(self, ops: Operators, unit: int) -> None:
        if unit >= 0:
            self._device.drop(self._gathered.pop(unit), awaiting=self._device.chance.random() < 0.3)

    def end_forward(self, ops: Operators) -> None:
        """Reshard the root after a forward without a backward."""
        self._device.drop(self._gathered.pop(-1))

    def pre_backward(self, ops: Operators, unit: int) -> None:
        self._gather(unit, (PythonFrame(_RUNTIME, 668, "_pre_backward_hook"),))

    def store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Keep a gradient of a view until all of its unit have arrived."""
        become_gradient(grad, "unsharded")
        self._arrived[parameter.shape.layer].append(grad)

    def post_backward(self, ops: Operators, unit: int) -> None:
        """Concatenate the gradients of the views, reduce-scatter, and reshard."""
        device, shard = self._device, self.shards[unit]
        arrived, self._arrived[unit] = self._arrived[unit], []
        whole = device.alloc(sum(each.bytes for each in arrived), Tenant.GRADIENTS, "unsharded", "cat")
        for each in arrived:
            device.drop(each)
        hook = PythonFrame(_RUNTIME, 762, "_post_backward_hook"), PythonFrame(_RUNTIME, 845, "_reduce_grad")
        with device.call(*hook, PythonFrame(_RUNTIME, 901, "_get_reduce_scatter_tensors")):
            padded = self._padded[unit] * shard.element_bytes
            source = whole
            if padded != whole.bytes:
                source = device.alloc(padded, COMMUNICATION, "reduce_scatter", "pad", stream=_REDUCE_STREAM)
            reduced = device.alloc(shard.bytes, Tenant.GRADIENTS, "grad", "empty_like", stream=_REDUCE_STREAM)
        if source is not whole:
            device.drop(source)
        device.drop(whole, awaiting=device.chance.random() < 0.4)
        if unit in self._gathered:
            device.drop(self._gathered.pop(unit))
        if shard.grad is None:
            shard.grad = reduced
        else:
            reduced.lifetime.also = (Tenant.TEMPORARY_BUFFERS, COMMUNICATION)
            device.drop(reduced)


class ShardedParameters:
    """FSDP2: a shard per parameter; gradients are views into one output of the reduce-scatter per unit."""

    def __init__(
        self,
        device: TracedDevice,
        parameters: Sequence[SimulatedParameter],
        *,
        world_size: int,
        compute_bytes: int,
    ) -> None:
        self._device, self._units = device, group_by_unit(parameters)
        self._compute_bytes, self._world_size = compute_bytes, world_size
        self._gathered: dict[int, list[Tensor]] = {}
        self._arrived: dict[int, list[Tensor]] = {unit: [] for unit in self._units}
        self.shards: dict[int, list[SimulatedParameter]] = {}
        init = (
            PythonFrame(f"{TORCH}distributed/_composable/contract.py", 188, "wrapper"),
            PythonFrame(f"{_SHARD}_fully_shard.py", 239, "fully_shard"),
            PythonFrame(f"{_SHARD}_fsdp_param_group.py", 168, "__init__"),
            PythonFrame(f"{_SHARD}_fsdp_param.py", 225, "__init__"),
            PythonFrame(f"{_SHARD}_fsdp_param.py", 311, "_init_sharded_param"),
        )
        for unit in sorted(self._units, reverse=True):
            self.shards[unit] = []
            for member in self._units[unit]:
                first, *rest = member.shape.shape
                shape = replace(member.shape, shape=(-(-first // world_size), *rest))
                shard = SimulatedParameter(shape, member.element_bytes)
                with device.call(*init):
                    shard.tensor = device.alloc(shard.bytes, Tenant.PARAMETERS, "shard", "new_zeros")
                if member.tensor is not None:
                    device.drop(member.tensor)
                    member.tensor = None
                self.shards[unit].append(shard)

    def _gather(self, unit: int, hook: tuple[PythonFrame, ...]) -> None:
        """All-gather into one flat buffer, and copy out of it into each parameter."""
        if unit in self._gathered:
            return
        device, shards = self._device, self.shards[unit]
        flat = sum(each.numel for each in shards) * self._world_size * self._compute_bytes
        group = f"{_SHARD}_fsdp_param_group.py"
        collectives = f"{_SHARD}_fsdp_collectives.py"
        with device.call(*hook):
            gather = (
                PythonFrame(collectives, 362, "foreach_all_gather"),
                PythonFrame(collectives, 59, "allocate"),
            )
            with device.call(PythonFrame(group, 392, "unshard"), *gather):
                output = device.alloc(flat, COMMUNICATION, "all_gather", "empty", stream=_GATHER_STREAM)
            copy = PythonFrame(collectives, 455, "foreach_all_gather_copy_out")
            outputs = PythonFrame(f"{_SHARD}_fsdp_param.py", 626, "init_all_gather_outputs")
            with device.call(PythonFrame(group, 430, "wait_for_unshard"), copy, outputs):
                self._gathered[unit] = [
                    device.alloc(
                        each.numel * self._world_size * self._compute_bytes, COMMUNICATION, "gathered_param"
                    )
                    for each in shards
                ]
        device.drop(output, awaiting=device.chance.random() < 0.3)

    def _hook(self, name: str, *, state: str, line: int) -> tuple[PythonFrame, ...]:
        return (
            PythonFrame(f"{_SHARD}_fsdp_state.py", line, state),
            PythonFrame(f"{_SHARD}_fsdp_param_group.py", 552, name),
        )

    def pre_forward(self, ops: Operators, unit: int) -> None:
        wrapper = PythonFrame(f"{_SHARD}_fsdp_state.py", 63, "fsdp_hook_wrapper")
        self._gather(unit, (wrapper, *self._hook("pre_forward", state="_pre_forward", line=248)))

    def post_forward(self, ops: Operators, unit: int) -> None:
        if unit >= 0:
            self._reshard(unit)

    def end_forward(self, ops: Operators) -> None:
        """Reshard the root after a forward without a backward."""
        self._reshard(-1)

    def pre_backward(self, ops: Operators, unit: int) -> None:
        self._gather(unit, self._hook("pre_backward", state="_pre_backward", line=330))

    def store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Keep an unsharded gradient until its unit is reduced."""
        become_gradient(grad, "unsharded")
        self._arrived[parameter.shape.layer].append(grad)

    def post_backward(self, ops: Operators, unit: int) -> None:
        """Reduce-scatter the gradients of a unit, and reshard it."""
        device, shards = self._device, self.shards[unit]
        arrived, self._arrived[unit] = self._arrived[unit], []
        self._reshard(unit)
        reduce = (
            PythonFrame(f"{TORCH}autograd/function.py", 317, "apply"),
            PythonFrame(f"{_SHARD}_fsdp_param_group.py", 1128, "backward"),
            PythonFrame(f"{_SHARD}_fsdp_param_group.py", 655, "post_backward"),
            PythonFrame(f"{_SHARD}_fsdp_collectives.py", 598, "foreach_reduce"),
        )
        element = shards[0].element_bytes
        padded = sum(each.numel for each in shards) * self._world_size * element
        with device.call(*reduce):
            source = device.alloc(padded, COMMUNICATION, "reduce_scatter", "empty")
            for each in arrived:
                device.drop(each)
            output = device.alloc(
                padded // self._world_size, Tenant.GRADIENTS, "grad", "empty", line=640, stream=_REDUCE_STREAM
            )
        device.drop(source, awaiting=device.chance.random() < 0.5)
        if shards[0].grad is None:
            output.references = len(shards)
            for shard in shards:
                shard.grad = output
        else:
            output.lifetime.also = (Tenant.TEMPORARY_BUFFERS, COMMUNICATION)
            device.drop(output)

    def _reshard(self, unit: int) -> None:
        for each in self._gathered.pop(unit, []):
            self._device.drop(each)
