"""How gradients arrive at parameters: what happens to the block that a backward function made."""

from collections.abc import Callable
from typing import Protocol

from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import PythonFrame
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from zprof.model.tenants import Tenant


class GradientSink(Protocol):
    """Takes the gradient of one use of a parameter."""

    def deliver(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Take over ``grad``."""


def become_gradient(grad: Tensor, sub: str = "grad") -> None:
    """Name the owner of a block that became a gradient."""
    grad.lifetime.tenant, grad.lifetime.sub, grad.lifetime.also = Tenant.GRADIENTS, sub, ()


class AccumulatedGradients:
    """torch's AccumulateGrad: it takes the block as ``.grad``, or adds it to an existing one.

    A tied parameter gets the gradients of all its uses first. ``store`` is called with the whole gradient of
    a parameter. Blocks of another type are cast first (autocast).
    """

    def __init__(self, device: TracedDevice, store: Callable[[SimulatedParameter, Tensor], None]) -> None:
        self._device, self._store = device, store

    def deliver(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        device = self._device
        if grad.bytes != parameter.bytes:
            cast = device.alloc(parameter.bytes, Tenant.TEMPORARY_BUFFERS, "grad_cast", "_to_copy")
            device.drop(grad)
            grad = cast
        grad.lifetime.also = (Tenant.GRADIENTS,)
        parameter.arrived.append(grad)
        if len(parameter.arrived) < parameter.uses:
            return
        whole, *others = parameter.arrived
        parameter.arrived = []
        for other in others:
            device.drop(other)
        self._store(parameter, whole)


class MainGradients:
    """Megatron's: each gradient is added to ``main_grad`` in fp32 by a hook, and dropped.

    ``main_grad`` are views into flat buffers that are allocated once, before training.
    """

    def __init__(
        self,
        device: TracedDevice,
        parameters: list[SimulatedParameter],
        frames: tuple[PythonFrame, ...],
        *,
        flat: bool,
    ) -> None:
        self._device = device
        trained = [each for each in parameters if each.is_trained]
        with device.call(*frames):
            if flat:
                size = sum(each.numel * 4 for each in trained)
                buffer = device.alloc(size, Tenant.GRADIENTS, "main_grad", "zeros")
                buffer.references = len(trained)
                for parameter in trained:
                    parameter.grad = buffer
            else:
                for parameter in trained:
                    parameter.grad = device.alloc(parameter.numel * 4, Tenant.GRADIENTS, "main_grad", "zeros")

    def store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Add a gradient to ``main_grad``."""
        grad.lifetime.also = (Tenant.GRADIENTS,)
        self._device.drop(grad)


class OffloadedGradients:
    """Each gradient is copied to the host by a hook as soon as it is whole, and dropped."""

    def __init__(self, device: TracedDevice) -> None:
        self._device = device

    def store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Move a gradient to the host; its block waits for the copy stream."""
        become_gradient(grad)
        self._device.drop(grad, awaiting=True)
