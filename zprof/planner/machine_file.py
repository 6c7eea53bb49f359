"""Read the machine of a plan: a known name, or a TOML file.

A machine has a name of :mod:`zprof.model.machines`, or is described by a TOML file with your own figures.

Key names carry their units::

    base = "h100"              # optional: machine that supplies omitted keys
    name = "our cluster"
    memory_gb = 80             # per device, 1e9 bytes
    peak_tflops = 989          # dense 16-bit matrices
    peak_fp32_tflops = 67      # fp32 matrices without TF32; only fp32 jobs need it
    peak_fp8_tflops = 1979     # dense FP8 matrices; only FP8 jobs need it
    peak_fp4_tflops = 9000     # dense FP4 matrices; only FP4 jobs need it
    efficiency = 0.4           # fraction of the peak that compute reaches without waits
    matmul_efficiency = 0.8    # fraction of the 16-bit peak that a large matrix product reaches
    memory_gb_per_s = 3350     # bandwidth of the device's own memory
    devices_per_node = 8
    node_gb_per_s = 400        # all NICs of a node together, one direction
    intra_gb_per_s = 360       # bus bandwidth of collectives within a node
    intra_latency_us = 2       # per ring hop
    inter_latency_us = 10
    host_gb_per_s = 50         # between a device and host memory
"""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from zprof.base.errors import BadInput
from zprof.model.machines import MACHINES, Hardware, find_machine
from zprof.planner.stated_files import name_parse_error, read_stated_file

#: A machine description has a few lines; a larger file is something else.
MAX_FILE_BYTES = 64 * 1024
_MAX_NAME_LENGTH = 100
#: Bounds of every number in bytes, flop/s and nanoseconds; they keep plan times finite.
_MIN_VALUE, _MAX_VALUE = 1e-6, 1e18
#: TOML key: (field, factor from the key's unit to the field's unit).
_NUMBER_FIELDS: Mapping[str, tuple[str, float]] = {
    "memory_gb": ("memory_bytes", 1e9),
    "peak_tflops": ("flops_per_s", 1e12),
    "peak_fp32_tflops": ("fp32_flops_per_s", 1e12),
    "peak_fp8_tflops": ("fp8_flops_per_s", 1e12),
    "peak_fp4_tflops": ("fp4_flops_per_s", 1e12),
    "efficiency": ("efficiency_ratio", 1),
    "matmul_efficiency": ("matmul_ratio", 1),
    "memory_gb_per_s": ("device_bytes_per_s", 1e9),
    "devices_per_node": ("devices_per_node", 1),
    "node_gb_per_s": ("node_bytes_per_s", 1e9),
    "intra_gb_per_s": ("intra_bytes_per_s", 1e9),
    "intra_latency_us": ("intra_latency_ns", 1e3),
    "inter_latency_us": ("inter_latency_ns", 1e3),
    "host_gb_per_s": ("host_bytes_per_s", 1e9),
}
_INTEGER_FIELDS = frozenset({"memory_bytes", "devices_per_node", "intra_latency_ns", "inter_latency_ns"})
#: Keys that a file without a base may omit: ``Hardware`` has a default for them.
_OPTIONAL_KEYS = frozenset(
    (
        *("intra_latency_us", "inter_latency_us", "host_gb_per_s", "memory_gb_per_s", "matmul_efficiency"),
        *("peak_fp32_tflops", "peak_fp8_tflops", "peak_fp4_tflops"),
    )
)
_RATIO_KEYS = frozenset({"efficiency", "matmul_efficiency"})
_KEYS = ("base", "name", *_NUMBER_FIELDS)


def find_hardware(name_or_path: str) -> Hardware:
    """Return the machine with that name (see ``find_machine``), or the one that a ``.toml`` file describes.

    Raises:
        BadInput: no machine has that name (the message lists them), or the file cannot be used.
    """
    if name_or_path.lower().endswith(".toml"):
        return read_hardware(Path(name_or_path))
    machine = find_machine(name_or_path)
    if machine is None:
        raise BadInput(
            f"no hardware named {name_or_path[:60]!r}",
            hint=f"one of {', '.join(MACHINES)}, or the path of a .toml file",
        )
    return machine


def read_hardware(path: Path) -> Hardware:
    """Return the machine described by a TOML file.

    Raises:
        BadInput: the file is unreadable, too large or not TOML, or a key is unknown, missing, of the wrong
            type or out of range. The message is one line with the file and the key.
    """
    table = _parse_toml(path)
    if unknown := sorted(set(table) - set(_KEYS)):
        raise BadInput(f"{path}: unknown key {_shorten_value(unknown[0])}", hint="known: " + ", ".join(_KEYS))
    fields: dict[str, Any] = {}
    if "base" in table:
        base = table["base"]
        machine = find_machine(base) if isinstance(base, str) else None
        if machine is None:
            raise BadInput(
                f"{path}: base: unknown machine {_shorten_value(base)}", hint="one of " + ", ".join(MACHINES)
            )
        fields = asdict(machine)
    for key, (name, scale) in _NUMBER_FIELDS.items():
        if key in table:
            fields[name] = _read_number(path, key, table[key], scale, is_integer=name in _INTEGER_FIELDS)
        elif name not in fields and key not in _OPTIONAL_KEYS:
            raise BadInput(f"{path}: {key} is missing", hint='add it, or start from a machine: base = "h100"')
    source = f"{path.name}, the rest of {fields['name']}" if "base" in table else path.name
    return Hardware(**{**fields, "name": _read_name(path, table), "source": source})


def _parse_toml(path: Path) -> dict[str, Any]:
    content = read_stated_file(path, max_bytes=MAX_FILE_BYTES, what="a machine description")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{path}: not valid TOML: {name_parse_error(error)}", hint="see docs/planner.md for an example"
        ) from error


def _read_name(path: Path, table: Mapping[str, Any]) -> str:
    name = table.get("name", path.stem)
    if not isinstance(name, str):
        raise BadInput(f"{path}: name: must be text, not {_shorten_value(name)}")
    if not name.strip() or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise BadInput(
            f"{path}: name: must be 1 to {_MAX_NAME_LENGTH} printable characters, not {_shorten_value(name)}"
        )
    return name


def _read_number(path: Path, key: str, value: object, scale: float, *, is_integer: bool) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{path}: {key}: must be a number, not {_shorten_value(value)}")
    try:
        scaled = float(value) * scale
    except OverflowError:
        scaled = math.inf
    if not math.isfinite(scaled) or scaled <= 0:
        raise BadInput(f"{path}: {key}: must be above 0 and finite, not {_shorten_value(value)}")
    if not _MIN_VALUE <= scaled <= _MAX_VALUE:
        raise BadInput(
            f"{path}: {key}: {_shorten_value(value)} is out of range", hint="check the unit in the key's name"
        )
    if key in _RATIO_KEYS and scaled > 1:
        raise BadInput(
            f"{path}: {key}: must be a fraction of the peak, at most 1, not {_shorten_value(value)}"
        )
    if not is_integer:
        return scaled
    if key == "devices_per_node" and scaled != int(scaled):
        raise BadInput(f"{path}: {key}: must be an integer, not {_shorten_value(value)}")
    if round(scaled) < 1:
        raise BadInput(f"{path}: {key}: too small: {_shorten_value(value)}")
    return round(scaled)


def _shorten_value(value: object, *, quoted: bool = True) -> str:
    """Return an untrusted value as one line of at most 60 characters."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'}"
    try:
        text = repr(value) if quoted or not isinstance(value, str) else value
    except ValueError:  # an integer with more digits than Python converts
        return "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."
