"""Kinds of machines by name and from files of strangers."""

import os
from pathlib import Path

import pytest

from zprof.model.errors import BadInput
from zprof.model.job import Hardware
from zprof.planner.hardware import MAX_FILE_BYTES, PRESETS, find_hardware, read_hardware

WHOLE = {
    "name": '"ours"',
    "memory_gb": "48",
    "peak_tflops": "181.5",
    "peak_fp32_tflops": "22.5",
    "efficiency": "0.5",
    "devices_per_node": "4",
    "node_gb_per_s": "25",
    "intra_gb_per_s": "20.5",
    "intra_latency_us": "3.5",
    "inter_latency_us": "15",
    "host_gb_per_s": "24",
}


def written(folder: Path, keys: dict[str, str]) -> Path:
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


def test_every_key_with_its_unit(tmp_path: Path) -> None:
    assert read_hardware(written(tmp_path, WHOLE)) == Hardware(
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
    )


def test_what_need_not_be_said(tmp_path: Path) -> None:
    few = {key: value for key, value in WHOLE.items() if "latency" not in key and "fp32" not in key}
    del few["name"]
    found = read_hardware(written(tmp_path, few))
    assert (found.name, found.intra_latency_ns, found.inter_latency_ns) == ("machine", 2_000, 10_000)
    assert found.fp32_flops_per_s is None, "not that of another type"


def test_presets_know_fp32_as_data_sheets_have_it() -> None:
    """Dense, without TF32: a fifth to an eighth of what 16-bit matrices reach, and less."""
    peaks = {name: find_hardware(name).fp32_flops_per_s for name in PRESETS}
    a100, h100 = 19.5e12, 67e12
    assert peaks == {"v100": 15.7e12, "a100": a100, "a100-40gb": a100, "h100": h100, "h200": h100}


@pytest.mark.parametrize("base", list(PRESETS))
def test_a_base_gives_what_is_not_said(tmp_path: Path, base: str) -> None:
    path = written(tmp_path, {"base": f'"{base}"', "node_gb_per_s": "50"})
    found, preset = read_hardware(path), PRESETS[base]
    assert (found.name, found.node_bytes_per_s) == ("machine", 50e9)
    assert (found.memory_bytes, found.flops_per_s) == (preset.memory_bytes, preset.flops_per_s)
    assert found.host_bytes_per_s == preset.host_bytes_per_s


@pytest.mark.parametrize(
    "key", ["memory_gb", "peak_tflops", "efficiency", "devices_per_node", "node_gb_per_s", "intra_gb_per_s"]
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, {name: value for name, value in WHOLE.items() if name != key})
    assert refusal(path) == f"{key} is missing"


NUMBERS = [key for key in WHOLE if key != "name"]


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    "value",
    ["0", "-1", "nan", "inf", "-inf", "true", '"8"', "[8]", "{a = 1}", "1e300", "1e-300", "1" + 400 * "0"],
)
def test_a_number_that_is_none_is_refused_by_its_key(tmp_path: Path, key: str, value: str) -> None:
    assert refusal(written(tmp_path, {**WHOLE, key: value})).startswith(f"{key}: ")


def test_shares_and_counts(tmp_path: Path) -> None:
    assert "at most 1" in refusal(written(tmp_path, {**WHOLE, "efficiency": "1.01"}))
    assert "whole number" in refusal(written(tmp_path, {**WHOLE, "devices_per_node": "7.5"}))


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, {**WHOLE, "memory_gib": "80"})) == "unknown key 'memory_gib'"
    assert "unknown key" in refusal(written(tmp_path, {**WHOLE, '"a\\nb\\u001b"': "1"}))


@pytest.mark.parametrize("base", ['"b300"', "3", "[1]"])
def test_an_unknown_base_is_refused(tmp_path: Path, base: str) -> None:
    assert refusal(written(tmp_path, {"base": base})).startswith("base: no preset")


@pytest.mark.parametrize("name", ['""', '" "', "3", '"a\\nb"', '"\\u001b[31m"', f'"{"a" * 101}"'])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    assert refusal(written(tmp_path, {**WHOLE, "name": name})).startswith("name: ")


@pytest.mark.parametrize(
    "content", [b"memory_gb = ", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"[" * 30_000, b"\x00"]
)
def test_what_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "machine.toml"
    path.write_bytes(content)
    assert refusal(path).startswith("no TOML")


def test_reading_stops_at_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_bytes(b"# " + b"x" * MAX_FILE_BYTES)
    assert "larger than" in refusal(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.toml").startswith("cannot be read")
    assert refusal(tmp_path) == "no file"
    assert refusal(Path(os.devnull)) == "no file"  # as a pipe, which would block


def test_lookup(tmp_path: Path) -> None:
    assert find_hardware("H100") is PRESETS["h100"]
    assert find_hardware(str(written(tmp_path, WHOLE))).name == "ours"
    with pytest.raises(BadInput) as refused:
        find_hardware("b300")
    assert all(name in refused.value.hint for name in PRESETS)
    assert "\n" not in refused.value.message


def test_presets_are_named_as_they_are_found() -> None:
    assert {name: found.name for name, found in PRESETS.items()} == {name: name for name in PRESETS}
    memory = {name: found.memory_bytes // 10**9 for name, found in PRESETS.items()}
    assert memory == {"v100": 32, "a100": 80, "a100-40gb": 40, "h100": 80, "h200": 141}
