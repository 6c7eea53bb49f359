"""Reads a kind of machine from a TOML file.

Keys carry their units::

    base = "h100"              # optional: what is not said is as there
    name = "our cluster"
    memory_gb = 80             # of a device, 1e9 bytes
    peak_tflops = 989          # of 16-bit matrices, dense
    peak_fp32_tflops = 67      # of 32-bit ones without TF32; only fp32 jobs need it
    efficiency = 0.4           # share of it that compute reaches when nothing is waited for
    devices_per_node = 8
    node_gb_per_s = 400        # all network cards of a node together, one direction
    intra_gb_per_s = 360       # bus bandwidth of collectives within a node
    intra_latency_us = 2       # of a hop of a ring
    inter_latency_us = 10
    host_gb_per_s = 50         # between a device and the memory of its host
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zprof.model.errors import BadInput
from zprof.model.planning.hardware import Hardware
from zprof.planner.hardware.presets import PRESETS

#: A description of a machine is a few lines; a file above this is something else.
MOST_BYTES = 64 * 1024
_LONGEST_NAME = 100
#: Bounds of every number in bytes, flop/s and nanoseconds, so that times of a plan stay finite.
_LEAST, _MOST = 1e-6, 1e18

#: Key of the file: field, and how many of the field's units one of the key's is.
_NUMBERS: Mapping[str, tuple[str, float]] = {
    "memory_gb": ("memory_bytes", 1e9),
    "peak_tflops": ("flops_per_s", 1e12),
    "peak_fp32_tflops": ("fp32_flops_per_s", 1e12),
    "efficiency": ("efficiency_ratio", 1),
    "devices_per_node": ("devices_per_node", 1),
    "node_gb_per_s": ("node_bytes_per_s", 1e9),
    "intra_gb_per_s": ("intra_bytes_per_s", 1e9),
    "intra_latency_us": ("intra_latency_ns", 1e3),
    "inter_latency_us": ("inter_latency_ns", 1e3),
    "host_gb_per_s": ("host_bytes_per_s", 1e9),
}
_WHOLE = frozenset({"memory_bytes", "devices_per_node", "intra_latency_ns", "inter_latency_ns"})
#: What a file without a base need not say: ``Hardware`` has a value for it.
_OPTIONAL = frozenset({"intra_latency_us", "inter_latency_us", "host_gb_per_s", "peak_fp32_tflops"})
_KEYS = ("base", "name", *_NUMBERS)


def read_hardware(path: Path) -> Hardware:
    """The machine that a file describes.

    Raises:
        BadInput: the file cannot be read, is too large, is no TOML, or a key is unknown, missing, of the
            wrong type or out of range; one line that names the file and the key.
    """
    table = _parse(path)
    if unknown := sorted(set(table) - set(_KEYS)):
        raise BadInput(f"{path}: unknown key {_short(unknown[0])}", hint="known: " + ", ".join(_KEYS))
    fields = _base(path, table)
    for key, (name, scale) in _NUMBERS.items():
        if key in table:
            fields[name] = _number(path, key, table[key], scale, whole=name in _WHOLE)
        elif name not in fields and key not in _OPTIONAL:
            raise BadInput(f"{path}: {key} is missing", hint='say it, or start from a preset: base = "h100"')
    return Hardware(**{**fields, "name": _name(path, table)})


def _parse(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe would block, a device might never end
            raise BadInput(f"{path}: no file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"{path}: cannot be read: {reason}") from error
    if len(content) > MOST_BYTES:
        raise BadInput(f"{path}: larger than {MOST_BYTES} bytes: no description of a machine")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        first = _short(str(error).splitlines()[0] if str(error) else type(error).__name__, quoted=False)
        raise BadInput(f"{path}: no TOML: {first}", hint="docs/planner.md shows such a file") from error


def _base(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    if "base" not in table:
        return {}
    base = table["base"]
    if not isinstance(base, str) or base not in PRESETS:
        raise BadInput(f"{path}: base: no preset {_short(base)}", hint="one of " + ", ".join(PRESETS))
    return asdict(PRESETS[base])


def _name(path: Path, table: Mapping[str, Any]) -> str:
    name = table.get("name", path.stem)
    if not isinstance(name, str):
        raise BadInput(f"{path}: name: a text, not {_short(name)}")
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadInput(f"{path}: name: 1 to {_LONGEST_NAME} printable characters, not {_short(name)}")
    return name


def _number(path: Path, key: str, value: object, scale: float, *, whole: bool) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{path}: {key}: a number, not {_short(value)}")
    try:
        scaled = float(value) * scale
    except OverflowError:
        scaled = math.inf
    if not math.isfinite(scaled) or scaled <= 0:
        raise BadInput(f"{path}: {key}: above 0 and finite, not {_short(value)}")
    if not _LEAST <= scaled <= _MOST:
        raise BadInput(f"{path}: {key}: no machine has {_short(value)}", hint="keys carry their units")
    if key == "efficiency" and scaled > 1:
        raise BadInput(f"{path}: {key}: a share of the peak, at most 1, not {_short(value)}")
    if not whole:
        return scaled
    if key == "devices_per_node" and scaled != int(scaled):
        raise BadInput(f"{path}: {key}: a whole number, not {_short(value)}")
    if round(scaled) < 1:
        raise BadInput(f"{path}: {key}: too small: {_short(value)}")
    return round(scaled)


def _short(value: object, *, quoted: bool = True) -> str:
    """A value of a stranger's file in one line of bounded length."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'}"
    try:
        text = repr(value) if quoted or not isinstance(value, str) else value
    except ValueError:  # a whole number of more digits than Python prints
        return "a number that long"
    return text if len(text) <= 60 else text[:57] + "..."
