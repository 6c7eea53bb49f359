"""Data parallelism: DDP's buckets, and what ranks exchange besides gradients."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import TORCH, PythonFrame
from benchmarks.snapshot_truth.gradients import become_gradient
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from zprof.model.tenants import Tenant

COMMUNICATION = Tenant.COMMUNICATION_BUFFERS

_DDP = f"{TORCH}nn/parallel/distributed.py"
_C10D = f"{TORCH}distributed/distributed_c10d.py"
_LOGGED = PythonFrame(f"{TORCH}distributed/c10d_logger.py", 83, "wrapper")
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20


def make_barrier(device: TracedDevice) -> Tensor:
    """Return the tensor that NCCL's first barrier reduces; the process group keeps it."""
    with device.call(_LOGGED, PythonFrame(_C10D, 5060, "barrier")):
        return device.alloc(4, COMMUNICATION, "barrier", "nccl_barrier")


def gather_metrics(device: TracedDevice, world_size: int) -> None:
    """Gather an object of each rank, as logging does."""
    frames = _LOGGED, PythonFrame(_C10D, 3517, "all_gather_object")
    with device.call(*frames):
        size = device.chance.choice((512, 2048, 6000))
        with device.call(PythonFrame(_C10D, 3420, "_object_to_tensor")):
            own = device.alloc(size, COMMUNICATION, "object", "_to_copy")
        everyone = device.alloc(size * world_size, COMMUNICATION, "object", "empty")
    device.drop(own)
    device.drop(everyone)


class GradientBuckets:
    """DDP's reducer: buckets that are made with the module, and once more after the first backward."""

    def __init__(
        self, device: TracedDevice, parameters: Sequence[SimulatedParameter], *, has_views: bool
    ) -> None:
        self._device, self._has_views = device, has_views
        self._trained = [each for each in parameters if each.is_trained]
        self._is_rebuilt = False
        wrap = PythonFrame(_DDP, 870, "__init__")
        with device.call(wrap, PythonFrame(f"{TORCH}distributed/utils.py", 330, "_sync_module_states")):
            size = min(sum(each.bytes for each in parameters), 250 << 20)
            device.drop(device.alloc(size, COMMUNICATION, "broadcast", "broadcast_coalesced"))
        with device.call(wrap, PythonFrame(_DDP, 1437, "_ddp_init_helper")):
            self._buckets = self._make_buckets(self._trained, "reducer")

    def _make_buckets(self, parameters: Sequence[SimulatedParameter], op: str) -> list[Tensor]:
        tenant, sub = (Tenant.GRADIENTS, "grad") if self._has_views else (COMMUNICATION, "bucket")
        sizes, limit = [0], _FIRST_BUCKET
        for parameter in reversed(parameters):
            sizes[-1] += parameter.bytes
            if sizes[-1] >= limit:
                sizes.append(0)
                limit = _BUCKET
        return [self._device.alloc(size, tenant, sub, op) for size in sizes if size]

    def rebuild(self, module: AbstractContextManager[None]) -> None:
        """Order the buckets by the first backward; called before the second forward."""
        if self._is_rebuilt:
            return
        self._is_rebuilt = True
        with module, self._device.call(PythonFrame(_DDP, 1771, "_pre_forward")):
            new = self._make_buckets(self._trained, "rebuild_buckets")
            for bucket in self._buckets:
                self._device.drop(bucket)
        self._buckets = new

    def store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Copy a gradient into its bucket; ``.grad`` is a view of it, or stays beside it."""
        if self._has_views or parameter.grad is not None:
            grad.lifetime.also = (Tenant.GRADIENTS,)
            self._device.drop(grad)
        else:
            become_gradient(grad)
            parameter.grad = grad
