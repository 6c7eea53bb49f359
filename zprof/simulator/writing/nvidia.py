"""How Kineto writes NVIDIA devices (CUPTI): as in traces of PyTorch 2.8 on H100."""

import json
from collections.abc import Sequence

from zprof.model.collectives import CollectiveKind
from zprof.simulator.knobs import DType
from zprof.simulator.program.instructions import Copy, Direction
from zprof.simulator.writing.names import COLLECTIVES, TYPES, KernelName

_SMS = 132
#: Calls of the runtime, and their callback ids.
_CALLS = {
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
        return f"cuda{what}", ['"External id": %s', f'"cbid": {_CALLS[what]}, "correlation": %s']

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
