"""The compiled kernels on one CUDA device, launched through cuda.core on torch's current stream."""

from typing import Any, Protocol

import torch

from zprof.reference_engine.optimizer.cuda.cache import cubin, default_folder
from zprof.reference_engine.optimizer.cuda.program import KernelError, first_line

#: Of a block, for every kernel: what ``THREADS`` says in the source.
THREADS = 256


class Runtime(Protocol):
    """Runs kernels by name.  Arguments: ``int`` for a pointer or a 64-bit count, ``float`` for a double.

    ``threads``  of a block
    """

    threads: int

    def stream(self) -> int:
        """Return what identifies torch's current stream."""

    def resident_blocks(self, kernel: str) -> int:
        """Blocks that run at the same time."""

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        """Asynchronous; after what torch's current stream was given before."""


class CudaRuntime:
    """See :class:`Runtime`.

    Raises:
        KernelError: the kernels cannot be compiled or loaded for the device.
    """

    threads = THREADS

    def __init__(self, device: torch.device) -> None:
        """Compile, or find in the cache, for ``device``."""
        from cuda.core import Device, ObjectCode

        self._device = device
        major, minor = torch.cuda.get_device_capability(device)
        code = cubin(f"sm_{major}{minor}", default_folder())
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernels: dict[str, Any] = {}
        with torch.cuda.device(device):
            self._cuda_device = Device(device.index)
            self._cuda_device.set_current()
            try:
                self._code = ObjectCode.from_cubin(code, name="adamw")
            except Exception as error:  # cuda.core's own types
                raise KernelError(f"the kernel cannot be loaded on {device}: {first_line(error)}") from error

    def stream(self) -> int:
        """Return what identifies torch's current stream."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def resident_blocks(self, kernel: str) -> int:
        """Blocks that run at the same time: so many are one wave, and each does its start-up work once."""
        with torch.cuda.device(self._device):
            self._cuda_device.set_current()
            occupancy = self._kernel(kernel).occupancy
            return int(occupancy.max_active_blocks_per_multiprocessor(THREADS, 0)) * self._processors

    def launch(self, kernel: str, blocks: int, *arguments: int | float) -> None:
        """Asynchronous; after what torch's current stream was given before."""
        from cuda.core import LaunchConfig, launch

        with torch.cuda.device(self._device):
            self._cuda_device.set_current()  # a thread that torch has not used yet has no context
            stream = TorchStream(torch.cuda.current_stream(self._device))
            launch(stream, LaunchConfig(grid=blocks, block=THREADS), self._kernel(kernel), *arguments)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            try:
                self._kernels[name] = self._code.get_kernel(name)
            except Exception as error:  # cuda.core's own types
                raise KernelError(
                    f"kernel {name} cannot be loaded on {self._device}: {first_line(error)}"
                ) from error
        return self._kernels[name]


class TorchStream:
    """A stream of torch, in the protocol by which CUDA libraries hand streams to each other."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Borrowed: torch keeps it alive."""
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the ``cudaStream_t``."""
        return 0, self._stream.cuda_stream
