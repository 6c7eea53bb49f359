"""Kinds of machines by name, and from files of strangers."""

import os
from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.model.machines import MACHINES, Hardware
from zprof.planner.machine_file import MAX_FILE_BYTES, find_hardware, read_hardware

WHOLE = {
    "name": '"ours"',
    "memory_gb": "48",
    "peak_tflops": "181.5",
    "peak_fp32_tflops": "22.5",
    "peak_fp8_tflops": "363",
    "peak_fp4_tflops": "726",
    "efficiency": "0.5",
    "matmul_efficiency": "0.75",
    "memory_gb_per_s": "864",
    "devices_per_node": "4",
    "node_gb_per_s": "25",
    "intra_gb_per_s": "20.5",
    "intra_latency_us": "3.5",
    "inter_latency_us": "15",
    "host_gb_per_s": "24",
}
OPTIONAL = {
    *("name", "intra_latency_us", "inter_latency_us", "host_gb_per_s", "memory_gb_per_s"),
    *("peak_fp32_tflops", "peak_fp8_tflops", "peak_fp4_tflops", "matmul_efficiency"),
}


def write_machine(folder: Path, keys: dict[str, str]) -> Path:
    path = folder / "machine.toml"
    path.write_text("\n".join(f"{key} = {value}" for key, value in keys.items()), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        read_hardware(path)
    message = refused.value.message
    assert "\n" not in message + refused.value.hint
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 200
    return message.removeprefix(f"{path}: ")


def test_every_key_is_read_with_its_unit(tmp_path: Path) -> None:
    expected = Hardware(
        name="ours",
        memory_bytes=48_000_000_000,
        flops_per_s=181.5e12,
        efficiency_ratio=0.5,
        devices_per_node=4,
        node_bytes_per_s=25e9,
        intra_bytes_per_s=20.5e9,
        intra_latency_ns=3_500,
        inter_latency_ns=15_000,
        host_bytes_per_s=24e9,
        fp32_flops_per_s=22.5e12,
        fp8_flops_per_s=363e12,
        fp4_flops_per_s=726e12,
        device_bytes_per_s=864e9,
        matmul_ratio=0.75,
        source="machine.toml",
    )
    assert read_hardware(write_machine(tmp_path, WHOLE)) == expected
    assert find_hardware(str(tmp_path / "machine.toml")) == expected


def test_optional_keys_have_defaults_and_required_ones_are_named(tmp_path: Path) -> None:
    required = {key: value for key, value in WHOLE.items() if key not in OPTIONAL}
    found = read_hardware(write_machine(tmp_path, required))
    assert (found.name, found.intra_latency_ns, found.inter_latency_ns) == ("machine", 2_000, 10_000)
    assert found.fp32_flops_per_s is None
    for key in required:
        missing = {name: value for name, value in required.items() if name != key}
        assert key in refusal(write_machine(tmp_path, missing))


def test_a_base_supplies_the_keys_that_are_left_out(tmp_path: Path) -> None:
    found = read_hardware(write_machine(tmp_path, {"base": '"h200"', "node_gb_per_s": "50"}))
    assert (found.name, found.node_bytes_per_s) == ("machine", 50e9)
    base = MACHINES["h200"]
    assert (found.memory_bytes, found.host_bytes_per_s) == (base.memory_bytes, base.host_bytes_per_s)


HUGE = "1" + 400 * "0"
BAD_NUMBERS = ["0", "-1", "nan", "inf", "-inf", "true", '"8"', "[8]", "{a = 1}", "1e300", "1e-300", HUGE]
BAD_VALUES = [
    *(("memory_gb", value) for value in BAD_NUMBERS),
    *((key, "-1") for key in WHOLE if key not in ("name", "memory_gb")),
    *(("node_gb_per_s", value) for value in ("1e300", "1e-300")),
    ("efficiency", "1.01"),
    ("devices_per_node", "7.5"),
    ("matmul_efficiency", "1.01"),
    *(("base", value) for value in ('"b400"', "3", "[1]")),
    *(("name", value) for value in ('""', '" "', "3", '"a\\nb"', '"\\u001b[31m"', f'"{"a" * 101}"')),
    ("memory_gib", "80"),
    ('"a\\nb\\u001b"', "1"),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_in_one_line_that_names_its_key(tmp_path: Path, key: str, value: str) -> None:
    assert key.strip('"') in refusal(write_machine(tmp_path, WHOLE | {key: value})).replace(
        "\\x1b", "\\u001b"
    )


TOO_LARGE = b"#" * (MAX_FILE_BYTES + 1)


@pytest.mark.parametrize(
    "content", [b"memory_gb = ", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"[" * 30_000, b"\x00", TOO_LARGE]
)
def test_a_file_that_is_no_toml_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "machine.toml"
    path.write_bytes(content)
    for unreadable in (path, tmp_path / "absent.toml", tmp_path, Path(os.devnull)):  # a pipe would block
        refusal(unreadable)
