"""Describe the machines that jobs are planned on: devices, their links, and a table of known machines.

A figure of ``MACHINES`` is a published figure, or a share of one that ``source`` states:

- memory is what the driver reports (nvidia-smi, amd-smi or hl-smi), not the capacity on the data sheet;
- peaks are from data sheets: dense matrices, 16-bit ones with fp32 accumulation, fp32 without TF32;
- ``matmul_ratio`` is measured, most of it in the tables "Maximum Achievable Matmul FLOPS" of Stas Bekman's
  Machine Learning Engineering (BOOK), and None if no measurement was found;
- bus bandwidth is measured with nccl-tests, rccl-tests or HCCL on all devices of a domain, without in-switch
  reduction, or a share of the link's data sheet rate.

``efficiency_ratio`` and the latencies are typical values, not measurements of your machines.
"""

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

_FP32_BYTES = 4
_MIB = 1 << 20
#: Stas Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering), as of 2026-08-22.
BOOK = "ml-engineering"
_SEPARATORS = re.compile(r"[^a-z0-9]+")
#: Words of a device's name that do not tell machines apart.
_IGNORED_WORDS = re.compile(
    r"cuda|rocm|hip|hpu|nvidia|amd|intel|tesla|geforce|instinct|gpu|dgx|hgx|sxm\d?|oam|hbm\d?e?|vf|ac"
)


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


#: DGX-2.
V100 = Hardware(
    name="v100",
    vendor="NVIDIA",
    memory_bytes=32_510 * _MIB,
    flops_per_s=125e12,
    fp32_flops_per_s=15.7e12,
    device_bytes_per_s=900e9,
    matmul_ratio=0.66,
    efficiency_ratio=0.30,
    devices_per_node=16,
    cards_per_node=8,
    node_bytes_per_s=100e9,
    intra_bytes_per_s=130e9,
    host_bytes_per_s=12e9,
    source="DGX-2 data sheet; nvidia-smi; matmul: arXiv 1803.04014 (83 Tflop/s); bus: 87 % of NVLink",
)
#: DGX A100.
A100 = Hardware(
    name="a100",
    vendor="NVIDIA",
    memory_bytes=81_920 * _MIB,
    flops_per_s=312e12,
    fp32_flops_per_s=19.5e12,
    device_bytes_per_s=2.039e12,
    matmul_ratio=0.869,
    efficiency_ratio=0.45,
    devices_per_node=8,
    cards_per_node=8,
    node_bytes_per_s=200e9,
    intra_bytes_per_s=230e9,
    host_bytes_per_s=25e9,
    source=f"DGX A100 data sheet; nvidia-smi; matmul and bus (235 GB/s): {BOOK}",
)
#: DGX H100.
H100 = Hardware(
    name="h100",
    vendor="NVIDIA",
    memory_bytes=81_559 * _MIB,
    flops_per_s=989e12,
    fp32_flops_per_s=67e12,
    fp8_flops_per_s=1_979e12,
    device_bytes_per_s=3.35e12,
    matmul_ratio=0.803,
    efficiency_ratio=0.40,
    devices_per_node=8,
    cards_per_node=8,
    node_bytes_per_s=400e9,
    intra_bytes_per_s=360e9,
    host_bytes_per_s=55e9,
    source=f"DGX H100 data sheet; nvidia-smi; matmul, bus and PCIe (of an h200): {BOOK}",
)
_H100_NVL = replace(
    H100,
    name="h100-nvl",
    memory_bytes=95_830 * _MIB,
    flops_per_s=835e12,
    fp32_flops_per_s=60e12,
    fp8_flops_per_s=1_671e12,
    device_bytes_per_s=3.9e12,
    matmul_ratio=None,
    devices_per_node=2,
    cards_per_node=1,
    node_bytes_per_s=50e9,
    intra_bytes_per_s=208e9,
    source=(
        "data sheet; nvidia-smi; pairs with an NVLink bridge and one card of 400 Gb/s; bus: an A100 pair "
        "at the same link rate (NVIDIA/nccl-tests issue 178); PCIe: as h200"
    ),
)
#: DGX B200.
_B200 = Hardware(
    name="b200",
    vendor="NVIDIA",
    memory_bytes=183_359 * _MIB,
    flops_per_s=2_250e12,
    fp32_flops_per_s=75e12,
    fp8_flops_per_s=4_500e12,
    fp4_flops_per_s=9_000e12,
    device_bytes_per_s=8e12,
    matmul_ratio=0.776,
    efficiency_ratio=0.40,
    devices_per_node=8,
    cards_per_node=8,
    node_bytes_per_s=400e9,
    intra_bytes_per_s=680e9,
    host_bytes_per_s=55e9,
    source=f"DGX B200 data sheet; nvidia-smi; matmul and bus (682 GB/s): {BOOK}; PCIe: as h200",
)
_GB200 = replace(
    _B200,
    name="gb200",
    memory_bytes=189_471 * _MIB,
    flops_per_s=2_500e12,
    fp32_flops_per_s=80e12,
    fp8_flops_per_s=5_000e12,
    fp4_flops_per_s=10_000e12,
    matmul_ratio=0.729,
    efficiency_ratio=0.36,
    devices_per_node=72,
    cards_per_node=72,
    node_bytes_per_s=3_600e9,
    host_bytes_per_s=360e9,
    source=f"NVL72 data sheet; nvidia-smi; matmul: {BOOK}; bus: GTC25 S72583; C2C: 80 % of 450 GB/s ({BOOK})",
)
#: Eight devices are the eight dies of four cards, as in Frontier and LUMI.
_MI250X = Hardware(
    name="mi250x",
    vendor="AMD",
    memory_bytes=65_520 * _MIB,
    flops_per_s=191.5e12,
    fp32_flops_per_s=47.9e12,
    device_bytes_per_s=1.638e12,
    matmul_ratio=0.767,
    efficiency_ratio=0.38,
    devices_per_node=8,
    cards_per_node=4,
    node_bytes_per_s=100e9,
    intra_bytes_per_s=80e9,
    host_bytes_per_s=29e9,
    source=(
        f"half of the data sheet's card, as each die is a device; rocm-smi; matmul: {BOOK} (2025); "
        "bus: 80 % of two Infinity Fabric links; host: 80 % of 36 GB/s"
    ),
)
_MI300X = Hardware(
    name="mi300x",
    vendor="AMD",
    memory_bytes=196_592 * _MIB,
    flops_per_s=1_307.4e12,
    fp32_flops_per_s=163.4e12,
    fp8_flops_per_s=2_614.9e12,
    device_bytes_per_s=5.3e12,
    matmul_ratio=0.511,
    efficiency_ratio=0.30,
    devices_per_node=8,
    cards_per_node=8,
    node_bytes_per_s=400e9,
    intra_bytes_per_s=313e9,
    host_bytes_per_s=55e9,
    source=f"data sheet; amd-smi; matmul (668 Tflop/s) and bus: {BOOK}; 8 cards of 400 Gb/s; PCIe: as h200",
)
_L40S = Hardware(
    name="l40s",
    vendor="NVIDIA",
    memory_bytes=46_068 * _MIB,
    flops_per_s=362e12,
    fp32_flops_per_s=91.6e12,
    fp8_flops_per_s=733e12,
    device_bytes_per_s=864e9,
    efficiency_ratio=0.40,
    devices_per_node=8,
    cards_per_node=4,
    node_bytes_per_s=200e9,
    intra_bytes_per_s=22e9,
    intra_latency_ns=3_000,
    host_bytes_per_s=25e9,
    source="data sheet; nvidia-smi; bus: 70 % of PCIe 4; 200 Gb/s per device; latency: as rtx4090",
)
_RTX4090 = replace(
    _L40S,
    name="rtx4090",
    memory_bytes=24_564 * _MIB,
    flops_per_s=165.2e12,
    fp32_flops_per_s=82.6e12,
    fp8_flops_per_s=330.3e12,
    device_bytes_per_s=1_008e9,
    efficiency_ratio=0.50,
    cards_per_node=1,
    node_bytes_per_s=12.5e9,
    source=(
        "Ada white paper; nvidia-smi; bus: 70 % of PCIe 4; latency: NVIDIA/nccl issue 1530; "
        "one card of 100 Gb/s is a choice"
    ),
)
_GAUDI3 = Hardware(
    name="gaudi3",
    vendor="Intel",
    memory_bytes=131_072 * _MIB,
    flops_per_s=1_677e12,
    fp32_flops_per_s=229e12,
    fp8_flops_per_s=1_677e12,
    device_bytes_per_s=3.7e12,
    matmul_ratio=0.741,
    efficiency_ratio=0.37,
    devices_per_node=8,
    cards_per_node=24,
    node_bytes_per_s=600e9,
    intra_bytes_per_s=510e9,
    host_bytes_per_s=55e9,
    source=f"white paper, at 1.6 GHz; hl-smi; matmul: {BOOK}; bus: HCCL (docs.habana.ai); PCIe: as h200",
)
#: Known machines by name.
MACHINES: Mapping[str, Hardware] = {
    machine.name: machine
    for machine in (
        V100,
        replace(
            V100,
            name="v100-16gb",
            memory_bytes=16_160 * _MIB,
            devices_per_node=8,
            cards_per_node=4,
            node_bytes_per_s=50e9,
            source=f"DGX-1 data sheet; the rest: {V100.source}",
        ),
        A100,
        replace(
            A100,
            name="a100-40gb",
            memory_bytes=40_960 * _MIB,
            device_bytes_per_s=1.555e12,
            source=f"{A100.source}; older drivers report 40,536 MiB",
        ),
        H100,
        _H100_NVL,
        replace(
            _H100_NVL,
            name="h100-pcie",
            memory_bytes=H100.memory_bytes,
            flops_per_s=756e12,
            fp32_flops_per_s=51e12,
            fp8_flops_per_s=1_513e12,
            device_bytes_per_s=2e12,
        ),
        replace(
            H100,
            name="h100-96gb",
            memory_bytes=97_871 * _MIB,
            flops_per_s=912e12,
            fp32_flops_per_s=63.5e12,
            fp8_flops_per_s=1_825e12,
            device_bytes_per_s=2.4e12,
            source=(
                "torchtitan, llama3_h100_202412 (500 W, HBM2e, a peak between SXM and NVL: the middle); "
                "nvidia-smi of other 96 GB devices; the rest: as h100"
            ),
        ),
        replace(
            H100,
            name="h200",
            memory_bytes=143_771 * _MIB,
            device_bytes_per_s=4.8e12,
            source=f"DGX H200 data sheet; nvidia-smi; matmul, bus and PCIe: {BOOK}",
        ),
        _B200,
        replace(
            _B200,
            name="b300",
            memory_bytes=275_040 * _MIB,
            fp4_flops_per_s=13_500e12,
            matmul_ratio=0.786,
            node_bytes_per_s=800e9,
            source=f"DGX B300 data sheet; nvidia-smi; matmul: {BOOK}; bus: as b200; PCIe: as h200",
        ),
        _GB200,
        replace(
            _GB200,
            name="gb300",
            memory_bytes=284_208 * _MIB,
            fp4_flops_per_s=15_000e12,
            node_bytes_per_s=7_200e9,
            source="NVL72 data sheet; nvidia-smi; matmul, bus and C2C: as gb200",
        ),
        _MI250X,
        _MI300X,
        replace(
            _MI300X,
            name="mi355x",
            memory_bytes=294_896 * _MIB,
            flops_per_s=2_500e12,
            fp32_flops_per_s=157.3e12,
            fp8_flops_per_s=5_000e12,
            fp4_flops_per_s=10_100e12,
            device_bytes_per_s=8e12,
            matmul_ratio=0.626,
            intra_bytes_per_s=375e9,
            source=(
                f"data sheet; amd-smi; matmul (1,565 Tflop/s): {BOOK}; bus: 70 % of Infinity Fabric, as "
                "measured on mi300x; 8 cards of 400 Gb/s; PCIe: as h200"
            ),
        ),
        _L40S,
        _RTX4090,
        replace(
            _RTX4090,
            name="rtx5090",
            memory_bytes=32_607 * _MIB,
            flops_per_s=209.5e12,
            fp32_flops_per_s=104.8e12,
            fp8_flops_per_s=419e12,
            fp4_flops_per_s=1_676e12,
            device_bytes_per_s=1_792e9,
            intra_bytes_per_s=28e9,
            host_bytes_per_s=55e9,
            source=(
                "RTX Blackwell white paper; nvidia-smi; bus: NVIDIA/nccl issue 1639; latency: as rtx4090; "
                "PCIe: as h200; one card of 100 Gb/s is a choice"
            ),
        ),
        _GAUDI3,
    )
}
#: Other names of a machine, as words without separators, next to the names of ``MACHINES``.
_ALIASES: Mapping[str, str] = {
    "v10032gb": "v100",
    "a10080gb": "a100",
    "h10080gb": "h100",
    "h10094gb": "h100-nvl",
    "h10080gbpcie": "h100-pcie",
    "h200141gb": "h200",
    "gb200nvl72": "gb200",
    "gb300nvl72": "gb300",
    "mi250xmi250": "mi250x",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "hl325l": "gaudi3",
    **{name.replace("-", ""): name for name in MACHINES},
}


def find_machine(device_name: str) -> Hardware | None:
    """Return the machine with this name ("H100-SXM"), or with the device that a run recorded under this name
    ("NVIDIA H100 80GB HBM3"); None if it is unknown, as a slice (MIG) or a variant of a device may be.
    """
    words = _SEPARATORS.sub(" ", device_name.lower()).split()
    key = "".join(word for word in words if not _IGNORED_WORDS.fullmatch(word))
    return MACHINES[_ALIASES[key]] if key in _ALIASES else None
