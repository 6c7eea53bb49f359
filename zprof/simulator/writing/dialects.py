"""What differs between Kineto traces of NVIDIA devices (CUPTI, PyTorch 2.8 on H100) and AMD devices
(roctracer, MI250 and MI300).

Values of a template: of kernels, copies and calls the external id and the correlation, in that order.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from zprof.model.collectives import CollectiveKind
from zprof.simulator.plan import DType
from zprof.simulator.program.instructions import Copy, Direction
from zprof.simulator.writing.events import quote_name
from zprof.simulator.writing.names import COLLECTIVES, RCCL_KERNEL, TYPES, KernelName


class Dialect(Protocol):
    """How one vendor's profiler writes."""

    def pid(self, rank: int) -> int:
        """The process number that the device's rows carry: the device."""

    def streams(self) -> Sequence[int]:
        """Stream numbers: of compute, of copies, then of each communication stream."""

    def kernel(self, name: KernelName) -> str:
        """A kernel's name."""

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """The name of a collective's kernel."""

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Arguments of a kernel."""

    def copy(self, rank: int, copy: Copy, stream: int) -> tuple[str, list[str]]:
        """Name and arguments of a copy of the device."""

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """Name and arguments of the call that launches a kernel."""

    def call(self, what: str) -> tuple[str, list[str]]:
        """Name and arguments of another call of the runtime, by its name without a prefix."""

    def sees_synchronisation(self) -> bool:
        """Whether the profiler records waits of streams and of the host as events of the device."""

    def properties(self) -> str:
        """The devices of a host, as JSON."""

    def extras(self) -> list[str]:
        """Further keys at the top of a file."""


_SMS = 132
#: Calls of the runtime, and their callback ids.
_CUDA_CALLS = {
    "LaunchKernel": 211,
    "LaunchKernelExC": 430,
    "MemcpyAsync": 41,
    "EventRecord": 135,
    "EventRecordWithFlags": 370,
    "StreamWaitEvent": 147,
    "EventSynchronize": 137,
    "StreamSynchronize": 131,
    "DeviceSynchronize": 165,
    "Malloc": 20,
    "Free": 22,
}


class Nvidia:
    """CUDA's names and numbers."""

    def pid(self, rank: int) -> int:
        """Eight devices a host."""
        return rank % 8

    def streams(self) -> Sequence[int]:
        """Compute runs on the default stream, which CUPTI calls 7."""
        return 7, 16, 20, 24, 28, 32, 36, 40, 44, 48

    def kernel(self, name: KernelName) -> str:
        """Its CUDA name."""
        return name.cuda

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """NCCL names operation, type, algorithm and protocol."""
        known = COLLECTIVES[kind]
        return (known.kernel if metadata else known.old_kernel).format(TYPES[dtype].kernel)

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """With occupancy, as computed from grid and block."""
        per_sm, occupancy = grid / _SMS, min(100, round(100 * grid * block / (_SMS * 2048)))
        return [
            '"External id": %s',
            f'"queued": 0, "device": {self.pid(rank)}, "context": 1',
            f'"stream": {stream}, "correlation": %s',
            f'"registers per thread": {registers}',
            '"shared memory": 0',
            f'"blocks per SM": {per_sm:.6f}',
            f'"warps per SM": {per_sm * block / 32:.6f}',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
            f'"est. achieved occupancy %%": {occupancy}',
        ]

    def copy(self, rank: int, copy: Copy, stream: int) -> tuple[str, list[str]]:
        """Between device and pinned memory."""
        inward = copy.direction is Direction.TO_DEVICE
        name = "Memcpy HtoD (Pinned -> Device)" if inward else "Memcpy DtoH (Device -> Pinned)"
        rate = copy.rate_bytes_per_s / 1e9
        return name, [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "context": 1',
            f'"stream": {stream}, "correlation": %s',
            f'"bytes": {copy.bytes}, "memory bandwidth (GB/s)": {rate}',
        ]

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """NCCL launches through the extended call."""
        return self.call("LaunchKernel" if shape else "LaunchKernelExC")

    def call(self, what: str) -> tuple[str, list[str]]:
        """With its callback id."""
        return f"cuda{what}", ['"External id": %s', f'"cbid": {_CUDA_CALLS[what]}, "correlation": %s']

    def sees_synchronisation(self) -> bool:
        """CUPTI does."""
        return True

    def properties(self) -> str:
        """Eight H100."""
        return json.dumps(
            [
                {
                    "id": device,
                    "name": "NVIDIA H100 80GB HBM3",
                    "totalGlobalMem": 85018279936,
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "maxThreadsPerBlock": 1024,
                    "maxThreadsPerMultiprocessor": 2048,
                    "regsPerBlock": 65536,
                    "warpSize": 32,
                    "sharedMemPerBlock": 49152,
                    "numSms": _SMS,
                    "regsPerMultiprocessor": 65536,
                    "sharedMemPerBlockOptin": 232448,
                    "sharedMemPerMultiprocessor": 233472,
                }
                for device in range(8)
            ]
        )

    def extras(self) -> list[str]:
        """Versions."""
        return ['"cupti_version": 26', '"cuda_runtime_version": 12080', '"cuda_driver_version": 12080']


#: What other calls of the runtime are called here, and their ids.
_HIP_CALLS = {
    "MemcpyAsync": ("hipMemcpyWithStream", 153),
    "EventRecord": ("hipEventRecord", 55),
    "EventRecordWithFlags": ("hipEventRecord", 55),
    "StreamWaitEvent": ("hipStreamWaitEvent", 225),
    "EventSynchronize": ("hipEventSynchronize", 57),
    "StreamSynchronize": ("hipStreamSynchronize", 222),
    "DeviceSynchronize": ("hipDeviceSynchronize", 48),
    "Malloc": ("hipMalloc", 112),
    "Free": ("hipFree", 67),
}


class Amd:
    """HIP's names and numbers."""

    def pid(self, rank: int) -> int:
        """Devices are counted from 2: the CPUs come first."""
        return 2 + rank % 8

    def streams(self) -> Sequence[int]:
        """Small numbers."""
        return 0, 1, 3, 4, 5, 6, 7, 8, 9, 10

    def kernel(self, name: KernelName) -> str:
        """Its HIP name."""
        return name.hip

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """RCCL's one kernel runs whatever is asked of it: its name says neither operation nor type."""
        return RCCL_KERNEL

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Few."""
        return [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "stream": {stream}',
            '"correlation": %s, "kind": "Dispatch Kernel"',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
        ]

    def copy(self, rank: int, copy: Copy, stream: int) -> tuple[str, list[str]]:
        """Host memory is not called pinned here."""
        inward = copy.direction is Direction.TO_DEVICE
        name = "Memcpy HtoD (Host -> Device)" if inward else "Memcpy DtoH (Device -> Host)"
        rate = copy.rate_bytes_per_s / 1e9
        return name, [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "stream": {stream}',
            f'"correlation": %s, "kind": "{copy.direction}"',
            f'"bytes": {copy.bytes}, "memory bandwidth (GB/s)": {rate}',
        ]

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """By a pointer, from a module (of the BLAS), or with cooperation (RCCL)."""
        if shape is None:
            called, number = "hipExtLaunchKernel", 64
        elif shape.module:
            called, number = "hipExtModuleLaunchKernel", 65
        else:
            called, number = "hipLaunchKernel", 107
        grid, block = (shape.grid, shape.block) if shape else (56, 256)
        return called, [
            '"External id": %s',
            f'"kernel": {quote_name(name)}, "cid": {number}, "correlation": %s',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
            '"shared memory": 0',
        ]

    def call(self, what: str) -> tuple[str, list[str]]:
        """With its id."""
        name, number = _HIP_CALLS[what]
        return name, ['"External id": %s', f'"cid": {number}, "correlation": %s']

    def sees_synchronisation(self) -> bool:
        """Roctracer does not."""
        return False

    def properties(self) -> str:
        """Eight MI300X."""
        return json.dumps(
            [
                {
                    "id": device,
                    "name": "AMD Instinct MI300X",
                    "totalGlobalMem": 205571227648,
                    "computeMajor": 9,
                    "computeMinor": 4,
                    "maxThreadsPerBlock": 1024,
                    "maxThreadsPerMultiprocessor": 2048,
                    "regsPerBlock": 65536,
                    "warpSize": 64,
                    "sharedMemPerBlock": 65536,
                    "numSms": 304,
                    "maxSharedMemoryPerMultiProcessor": 65536,
                }
                for device in range(8)
            ]
        )

    def extras(self) -> list[str]:
        """Versions."""
        return [
            '"roctracer_version": 4.1',
            '"hip_runtime_version": 60443483',
            '"hip_driver_version": 60443483',
        ]
