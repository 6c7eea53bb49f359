"""How Kineto writes AMD devices (roctracer): as in traces of MI250 and MI300."""

import json
from collections.abc import Sequence

from zprof.model.collectives import CollectiveKind
from zprof.simulator.knobs import DType
from zprof.simulator.program.instructions import Copy, Direction
from zprof.simulator.writing.layout import quoted
from zprof.simulator.writing.names import RCCL_KERNEL, KernelName

#: What other calls of the runtime are called here, and their ids.
_CALLS = {
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
            f'"kernel": {quoted(name)}, "cid": {number}, "correlation": %s',
            f'"grid": [{grid}, 1, 1]',
            f'"block": [{block}, 1, 1]',
            '"shared memory": 0',
        ]

    def call(self, what: str) -> tuple[str, list[str]]:
        """With its id."""
        name, number = _CALLS[what]
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
