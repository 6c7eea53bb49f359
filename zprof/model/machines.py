"""The table of machines: what devices and their links usually give.

Memory is in units of 1e9 bytes, as in arXiv 1910.02054 ("32 GB" is 32e9 bytes); a device's allocator may have
up to 7 % more. Peaks come from the vendor's data sheets (NVIDIA V100, A100, H100 SXM, H200), for dense 16-bit
matrices and for fp32 without TF32. The fraction of the peak that compute reaches, bus bandwidths and
latencies are typical values, not measurements of your machines.
"""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from zprof.model.job import Hardware

_GB = 1_000_000_000
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
PRESETS: Mapping[str, Hardware] = {
    "v100": V100,
    "a100": A100,
    "a100-40gb": replace(A100, name="a100-40gb", memory_bytes=40 * _GB),
    "h100": H100,
    "h200": replace(H100, name="h200", memory_bytes=141 * _GB),
}
_WORD = re.compile(r"[a-z]+\d+")


def find_machine(device_name: str) -> Hardware | None:
    """Return the machine with a device of that name ("NVIDIA H100 80GB HBM3"), None if none is known."""
    words = _WORD.findall(device_name.lower())
    return next((PRESETS[word] for word in words if word in PRESETS), None)
