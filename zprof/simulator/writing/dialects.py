"""Define the differences between Kineto traces of NVIDIA and AMD devices.

NVIDIA is CUPTI with PyTorch 2.8 on H100, AMD is roctracer on MI250 and MI300.  The template
values of kernels, copies and calls are the external id and the correlation, in that order.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from zprof.model.collectives import CollectiveKind
from zprof.simulator.plan import DType
from zprof.simulator.program.instructions import CopyDirection, CopyLaunch
from zprof.simulator.writing.events import quote_name
from zprof.simulator.writing.names import COLLECTIVES, RCCL_KERNEL, TYPES, KernelName

_SMS = 132
#: Runtime calls, and their callback ids.
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
#: HIP's names of other runtime calls, and their ids.
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


class TraceDialect(Protocol):
    """Trace format of one vendor's profiler."""

    def pid(self, rank: int) -> int:
        """Return the process number of the device's rows, which is the device number."""

    def list_streams(self) -> Sequence[int]:
        """Return the stream numbers: compute, copies, then each communication stream."""

    def kernel(self, name: KernelName) -> str:
        """Return a kernel's name."""

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """Return the name of a collective's kernel."""

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Return the arguments of a kernel."""

    def copy(self, rank: int, copy: CopyLaunch, stream: int) -> tuple[str, list[str]]:
        """Return name and arguments of a copy on the device."""

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """Return name and arguments of the call that launches a kernel."""

    def call(self, call: str) -> tuple[str, list[str]]:
        """Return name and arguments of another runtime call, given its name without a prefix."""

    def records_synchronisation(self) -> bool:
        """Return True if waits of streams and of the host are recorded as device events."""

    def properties(self) -> str:
        """Return the devices of a host, as JSON."""

    def extras(self) -> list[str]:
        """Return further keys at the top of a file."""


class Nvidia:
    """Trace format of CUDA devices."""

    def pid(self, rank: int) -> int:
        """Return the device number; there are eight devices per host."""
        return rank % 8

    def list_streams(self) -> Sequence[int]:
        """Return the stream numbers; compute runs on the default stream, which is number 7 in CUPTI."""
        return 7, 16, 20, 24, 28, 32, 36, 40, 44, 48

    def kernel(self, name: KernelName) -> str:
        """Return the kernel's CUDA name."""
        return name.cuda

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """Return NCCL's kernel name, which contains operation, type, algorithm and protocol."""
        names = COLLECTIVES[kind]
        return (names.kernel if metadata else names.old_kernel).format(TYPES[dtype].kernel)

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Return the arguments of a kernel, with the occupancy computed from grid and block."""
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

    def copy(self, rank: int, copy: CopyLaunch, stream: int) -> tuple[str, list[str]]:
        """Return a copy between device and pinned memory."""
        is_to_device = copy.direction is CopyDirection.TO_DEVICE
        name = "Memcpy HtoD (Pinned -> Device)" if is_to_device else "Memcpy DtoH (Device -> Pinned)"
        rate = copy.rate_bytes_per_s / 1e9
        return name, [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "context": 1',
            f'"stream": {stream}, "correlation": %s',
            f'"bytes": {copy.bytes}, "memory bandwidth (GB/s)": {rate}',
        ]

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """Return the launch call; NCCL uses the extended one."""
        return self.call("LaunchKernel" if shape else "LaunchKernelExC")

    def call(self, call: str) -> tuple[str, list[str]]:
        """Return a runtime call with its callback id."""
        return f"cuda{call}", ['"External id": %s', f'"cbid": {_CUDA_CALLS[call]}, "correlation": %s']

    def records_synchronisation(self) -> bool:
        """Return True: CUPTI records synchronization."""
        return True

    def properties(self) -> str:
        """Return the properties of eight H100."""
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
        """Return the CUDA versions."""
        return ['"cupti_version": 26', '"cuda_runtime_version": 12080', '"cuda_driver_version": 12080']


class Amd:
    """Trace format of HIP devices."""

    def pid(self, rank: int) -> int:
        """Return the device number; devices are counted from 2, after the CPUs."""
        return 2 + rank % 8

    def list_streams(self) -> Sequence[int]:
        """Return the stream numbers."""
        return 0, 1, 3, 4, 5, 6, 7, 8, 9, 10

    def kernel(self, name: KernelName) -> str:
        """Return the kernel's HIP name."""
        return name.hip

    def collective(self, kind: CollectiveKind, dtype: DType, metadata: bool) -> str:
        """Return the name of RCCL's single kernel, which contains neither operation nor type."""
        return RCCL_KERNEL

    def kernel_arguments(self, rank: int, stream: int, grid: int, block: int, registers: int) -> list[str]:
        """Return the arguments of a kernel."""
        return [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "stream": {stream}',
            '"correlation": %s, "kind": "Dispatch Kernel"',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
        ]

    def copy(self, rank: int, copy: CopyLaunch, stream: int) -> tuple[str, list[str]]:
        """Return a copy; its name does not mention pinned memory."""
        is_to_device = copy.direction is CopyDirection.TO_DEVICE
        name = "Memcpy HtoD (Host -> Device)" if is_to_device else "Memcpy DtoH (Device -> Host)"
        rate = copy.rate_bytes_per_s / 1e9
        return name, [
            '"External id": %s',
            f'"device": {self.pid(rank)}, "stream": {stream}',
            f'"correlation": %s, "kind": "{copy.direction}"',
            f'"bytes": {copy.bytes}, "memory bandwidth (GB/s)": {rate}',
        ]

    def launch(self, name: str, shape: KernelName | None) -> tuple[str, list[str]]:
        """Return the launch call: by pointer, from a module (BLAS), or cooperative (RCCL)."""
        if shape is None:
            call_name, number = "hipExtLaunchKernel", 64
        elif shape.module:
            call_name, number = "hipExtModuleLaunchKernel", 65
        else:
            call_name, number = "hipLaunchKernel", 107
        grid, block = (shape.grid, shape.block) if shape else (56, 256)
        return call_name, [
            '"External id": %s',
            f'"kernel": {quote_name(name)}, "cid": {number}, "correlation": %s',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
            '"shared memory": 0',
        ]

    def call(self, call: str) -> tuple[str, list[str]]:
        """Return a runtime call with its id."""
        name, number = _HIP_CALLS[call]
        return name, ['"External id": %s', f'"cid": {number}, "correlation": %s']

    def records_synchronisation(self) -> bool:
        """Return False: roctracer does not record synchronization."""
        return False

    def properties(self) -> str:
        """Return the properties of eight MI300X."""
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
        """Return the roctracer and HIP versions."""
        return [
            '"roctracer_version": 4.1',
            '"hip_runtime_version": 60443483',
            '"hip_driver_version": 60443483',
        ]
