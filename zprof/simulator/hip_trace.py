"""Build the trace of a simulated rank as Kineto writes it with roctracer, on AMD devices (MI250, MI300)."""

from __future__ import annotations

from typing import Final

from zprof.simulator import kernels
from zprof.simulator.state import Rank, Schedule, Task
from zprof.simulator.trace_writer import Row, TraceWriter

_CALLS: Final = {
    "cudaMemcpyAsync": ("hipMemcpyWithStream", 153), "cudaEventRecord": ("hipEventRecord", 55),
    "cudaStreamWaitEvent": ("hipStreamWaitEvent", 225), "cudaEventSynchronize": ("hipEventSynchronize", 57),
    "cudaStreamSynchronize": ("hipStreamSynchronize", 222),
    "cudaDeviceSynchronize": ("hipDeviceSynchronize", 48), "cudaMalloc": ("hipMalloc", 112),
    "cudaFree": ("hipFree", 67),
}  # fmt: skip
_GEMM: Final = "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN"
_FROM_MODULES: Final = {
    kernels.GEMM: _GEMM, kernels.GEMM2: _GEMM, kernels.SGEMM: _GEMM, kernels.FLASH: "attn_fwd",
    kernels.FLASH_BACKWARD: "bwd_kernel_dk_dv",
}  # fmt: skip
"""Kernels of BLAS and of Triton: their names, and they are launched from a module."""
_RCCL: Final = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"
"""RCCL's one kernel, whose name has neither operation nor type."""


class HipTraceWriter(TraceWriter):
    """The names and numbers that differ with HIP and roctracer."""

    first_device = 2

    def __init__(self, schedule: Schedule, rank: Rank) -> None:
        super().__init__(schedule, rank)
        self.launched = {task.correlation: task for task in rank.tasks if task.cat != "memcpy"}

    def number_streams(self) -> dict[int, int]:
        """Return small numbers; compute runs on stream 0."""
        return {stream: stream + (stream > 1) for stream in range(len(self.rank.streams))}

    def describe_call(self, name: str, correlation: int) -> tuple[str, Row]:
        """Return a call; launches by pointer, from a module, or cooperative ones include the kernel name."""
        if name in _CALLS:
            called, number = _CALLS[name]
            return called, {"cid": number, "correlation": correlation}
        task = self.launched[correlation]
        if task.cat == "collective":
            called, number = "hipExtLaunchKernel", 64
        else:
            is_module = task.kind in _FROM_MODULES
            called, number = ("hipExtModuleLaunchKernel", 65) if is_module else ("hipLaunchKernel", 107)
        kernel, grid, block = name_kernel(task)
        return called, {
            "kernel": kernel, "cid": number, "correlation": correlation, "grid": list(grid),
            "block": list(block), "shared memory": 0,
        }  # fmt: skip

    def add_sync(
        self, what: str, target: int, start: int, duration: int, correlation: int, external: int
    ) -> None:
        """Append nothing: roctracer does not record synchronization."""

    def describe_copy(self, task: Task, stream: int, args: Row) -> str:
        """Fill in the arguments of a copy; its name does not show pinned memory."""
        direction, size = task.info
        is_to_device = direction == "HtoD"
        args |= {
            "device": self.device, "stream": stream, "correlation": task.correlation,
            "kind": "HostToDevice" if is_to_device else "DeviceToHost", "bytes": size,
            "memory bandwidth (GB/s)": int(size) / max(1, task.end - task.start),
        }  # fmt: skip
        return "Memcpy HtoD (Host -> Device)" if is_to_device else "Memcpy DtoH (Device -> Host)"

    def describe_kernel(self, task: Task, stream: int, args: Row) -> str:
        """Fill in the arguments of a kernel, without occupancy."""
        name, grid, block = name_kernel(task)
        args |= {
            "device": self.device, "stream": stream, "correlation": task.correlation,
            "kind": "Dispatch Kernel", "grid": list(grid), "block": list(block),
        } | self.describe_message(task)  # fmt: skip
        return name

    def describe_devices(self) -> list[Row]:
        """Return the properties of a host's devices."""
        return [
            {"id": i, "name": self.job.gpu.name, "totalGlobalMem": self.job.gpu.memory_bytes,
             "computeMajor": 9, "computeMinor": 4, "maxThreadsPerBlock": 1024,
             "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 64,
             "sharedMemPerBlock": 65536, "numSms": self.job.gpu.sms,
             "maxSharedMemoryPerMultiProcessor": 65536}
            for i in range(self.job.cluster.ranks_per_node)
        ]  # fmt: skip

    def list_versions(self) -> Row:
        """Return the versions of roctracer and HIP."""
        return {"roctracer_version": 4.1, "hip_runtime_version": 60443483, "hip_driver_version": 60443483}


def name_kernel(task: Task) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return a kernel's name, grid and block."""
    if task.cat == "collective":
        return _RCCL, (56, 1, 1), (256, 1, 1)
    kind = kernels.KINDS[task.kind]
    return _FROM_MODULES.get(task.kind, kind.name), kind.grid, kind.block
