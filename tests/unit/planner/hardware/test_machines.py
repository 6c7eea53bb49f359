"""Known machines against their data sheets, and the names by which they are found."""

import pytest

from zprof.base.errors import BadInput
from zprof.model.machines import MACHINES, find_machine
from zprof.planner.machine_file import find_hardware

#: Capacity in GB, dense 16-bit and FP8 Tflop/s, and GB/s of memory, as data sheets print them; a die of an
#: MI250X is half a card. Known only as a range: the peak of the 96 GB H100.
SHEETS = {
    "v100": (32, 125, None, 900),
    "v100-16gb": (16, 125, None, 900),
    "a100": (80, 312, None, 2039),
    "a100-40gb": (40, 312, None, 1555),
    "h100": (80, 989.5, 1979, 3350),
    "h100-nvl": (94, 835.5, 1671, 3900),
    "h100-pcie": (80, 756, 1513, 2000),
    "h100-96gb": (96, None, None, 2400),
    "h200": (141, 989.5, 1979, 4800),
    "b200": (180, 2250, 4500, 8000),
    "b300": (288, 2250, 4500, 8000),
    "gb200": (186, 2500, 5000, 8000),
    "gb300": (288, 2500, 5000, 8000),
    "mi250x": (128 / 2, 383 / 2, None, 3276.8 / 2),
    "mi300x": (192, 1307.4, 2614.9, 5300),
    "mi355x": (288, 2500, 5000, 8000),
    "l40s": (48, 362, 733, 864),
    "rtx4090": (24, 165.2, 330.3, 1008),
    "rtx5090": (32, 209.5, 419, 1792),
    "gaudi3": (128, 1678, 1678, 3700),
}
#: Names as users type them and as runs record them.
NAMES = {
    "H100": "h100",
    "H100-SXM": "h100",
    "h100_80gb": "h100",
    "A100 80GB": "a100",
    "a100-80gb": "a100",
    "A100_40GB": "a100-40gb",
    "GB200-NVL72": "gb200",
    "RTX 4090": "rtx4090",
    "MI300X": "mi300x",
    "Gaudi 3": "gaudi3",
    "cuda (NVIDIA H100 80GB HBM3)": "h100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "Tesla V100-SXM3-32GB": "v100",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300X VF": "mi300x",
    "AMD Instinct MI250X / MI250": "mi250x",
    "AMD Instinct MI355X": "mi355x",
    "HL-325L": "gaudi3",
}
#: Other devices, slices of a device, and devices of a machine with other links.
UNKNOWN = (
    *("", "cpu", "NVIDIA", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB", "NVIDIA H20", "H1000"),
    *("NVIDIA A100-PCIE-40GB", "Tesla V100S-PCIE-32GB", "NVIDIA H200 NVL", "NVIDIA L40", "a" * 10_000),
    *("AMD Instinct MI250", "NVIDIA GeForce RTX 4090 Laptop GPU"),
)


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_the_figures_of_its_data_sheet(name: str) -> None:
    machine, (gigabytes, tflops, fp8_tflops, memory_rate) = MACHINES[name], SHEETS[name]
    assert machine.memory_bytes == pytest.approx(gigabytes * 1e9, rel=0.1)
    if tflops is not None:
        assert machine.flops_per_s == pytest.approx(tflops * 1e12, rel=1e-3)
        assert machine.fp8_flops_per_s == (fp8_tflops and pytest.approx(fp8_tflops * 1e12, rel=1e-3))
    assert machine.device_bytes_per_s == pytest.approx(memory_rate * 1e9, rel=1e-3)


def test_the_driver_reports_what_it_was_seen_to_report() -> None:
    reported = {"h100": 81_559, "h200": 143_771, "b200": 183_359, "b300": 275_040, "mi300x": 196_592}
    assert {name: MACHINES[name].memory_bytes / 2**20 for name in reported} == reported


@pytest.mark.parametrize("name", MACHINES)
def test_figures_of_a_machine_are_consistent(name: str) -> None:
    each = MACHINES[name]
    peaks = (each.fp4_flops_per_s, each.fp8_flops_per_s, each.flops_per_s, each.fp32_flops_per_s)
    known = [peak for peak in peaks if peak is not None]
    assert known == sorted(known, reverse=True)
    assert len(known) >= 2
    assert each.source
    assert each.vendor
    assert each.efficiency_ratio < (each.matmul_ratio or 1) < 1.01
    assert each.device_bytes_per_s > each.intra_bytes_per_s  # type: ignore[operator]
    card_rate = each.node_bytes_per_s * 8 / 1e9 / each.cards_per_node  # type: ignore[operator]
    assert round(card_rate) in (100, 200, 400, 800)


def test_a_machine_is_found_by_its_names() -> None:
    assert {name: found.name for name in NAMES if (found := find_machine(name))} == NAMES
    assert all(find_hardware(name.upper()) is machine for name, machine in MACHINES.items())


@pytest.mark.parametrize("name", UNKNOWN)
def test_another_device_is_unknown(name: str) -> None:
    assert find_machine(name) is None
    with pytest.raises(BadInput) as refused:
        find_hardware(name)
    assert all(each in refused.value.hint for each in MACHINES)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 100
