"""Describe the machines that jobs are planned on: devices, their links, and a table of known machines.

``MACHINES`` has typical figures of devices and their links. Memory is in units of 1e9 bytes, as in arXiv
1910.02054 ("32 GB" is 32e9 bytes); a device's allocator may have up to 7 % more. Peaks come from the vendor's
data sheets (NVIDIA V100, A100, H100 SXM, H200), for dense 16-bit matrices and for fp32 without TF32. The
fraction of the peak that compute reaches, bus bandwidths and latencies are typical values, not measurements
of your machines.
"""

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

_FP32_BYTES = 4
_GB = 1_000_000_000
_WORD = re.compile(r"[a-z]+\d+")


class Hardware(Struct, frozen=True, kw_only=True):
    """Devices grouped into domains with fast links: nodes, or a rack (72 devices of an NVL72).

    ``memory_bytes``: memory of one device. ``flops_per_s``: dense 16-bit matrix peak; ``fp32_flops_per_s``:
    32-bit matrix peak without TF32; if it is None, the time of fp32 jobs is unknown. ``fp8_flops_per_s``,
    ``fp4_flops_per_s``: dense FP8 and FP4 (NVFP4, MXFP4) matrix peaks; None if the device has none, or if the
    peak is unknown. ``device_bytes_per_s``: bandwidth of the device's own memory. ``efficiency_ratio``: share
    of the peak that a step's compute reaches, without waits; ``matmul_ratio``: share of the 16-bit peak that
    a large matrix product reaches by itself, as measured. ``devices_per_node``: devices of a domain.
    ``cards_per_node``: network cards of a domain; ``node_bytes_per_s``: total of these cards, in one
    direction. ``intra_bytes_per_s``: bus bandwidth of collectives within a domain. Latencies are per hop of a
    ring. ``host_bytes_per_s``: between a device and its host memory, in one direction. ``source``: where the
    figures come from.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    efficiency_ratio: float
    devices_per_node: int
    node_bytes_per_s: float
    intra_bytes_per_s: float
    intra_latency_ns: int = 2_000
    inter_latency_ns: int = 10_000
    host_bytes_per_s: float = 25e9
    fp32_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    fp4_flops_per_s: float | None = None
    device_bytes_per_s: float | None = None
    matmul_ratio: float | None = None
    cards_per_node: int | None = None
    vendor: str = ""
    source: str = ""

    def peak_flops_per_s(self, element_bytes: int) -> float | None:
        """Return the matrix peak for elements of this size, or None if it is unknown."""
        return self.fp32_flops_per_s if element_bytes == _FP32_BYTES else self.flops_per_s


#: DGX-2: 16 devices behind NVSwitch, eight EDR NICs of 12.5 GB/s.
V100 = Hardware(
    name="v100",
    memory_bytes=32 * _GB,
    flops_per_s=125e12,
    efficiency_ratio=0.30,
    devices_per_node=16,
    node_bytes_per_s=100e9,
    intra_bytes_per_s=130e9,
    host_bytes_per_s=12e9,
    fp32_flops_per_s=15.7e12,
)
#: DGX A100: 8 devices, eight HDR NICs of 25 GB/s.
A100 = Hardware(
    name="a100",
    memory_bytes=80 * _GB,
    flops_per_s=312e12,
    efficiency_ratio=0.45,
    devices_per_node=8,
    node_bytes_per_s=200e9,
    intra_bytes_per_s=230e9,
    host_bytes_per_s=25e9,
    fp32_flops_per_s=19.5e12,
)
#: DGX H100: 8 devices, eight NDR NICs of 50 GB/s.
H100 = Hardware(
    name="h100",
    memory_bytes=80 * _GB,
    flops_per_s=989e12,
    efficiency_ratio=0.40,
    devices_per_node=8,
    node_bytes_per_s=400e9,
    intra_bytes_per_s=360e9,
    host_bytes_per_s=50e9,
    fp32_flops_per_s=67e12,
)
MACHINES: Mapping[str, Hardware] = {
    "v100": V100,
    "a100": A100,
    "a100-40gb": replace(A100, name="a100-40gb", memory_bytes=40 * _GB),
    "h100": H100,
    "h200": replace(H100, name="h200", memory_bytes=141 * _GB),
}


def find_machine(device_name: str) -> Hardware | None:
    """Return the machine with the device of this name ("NVIDIA H100 80GB HBM3"), None if it is unknown."""
    words = _WORD.findall(device_name.lower())
    return next((MACHINES[word] for word in words if word in MACHINES), None)
