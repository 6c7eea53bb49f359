"""Check which features are available on this machine; each library is probed in its own process.

One check tells whether a hanging job with these environment variables leaves a flight-recorder dump. The
names are from torch 2.8 to 2.13 (``FlightRecorder.hpp``, ``ProcessGroupNCCL.cpp``). A dump needs entries, a
dump at a timeout, the monitoring thread that writes it, and a folder for it. Names with FR take precedence
over the older names with NCCL. Defaults differ by version, so the check does not rely on them.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct

from zprof.base.errors import Extra, get_install_command, is_installed
from zprof.base.formatting import format_bytes
from zprof.cache.folder import find_cache_folder, list_entries
from zprof.model.cache import CacheKind
from zprof.model.doctor import CheckStatus, Doctor, DoctorCheck
from zprof.version import __version__

_TIMEOUT_S = 120
_MAX_FAILURE_LETTERS = 200
_NOT_INSTALLED = "not installed"
#: Prefix of the answer line, to distinguish it from library output.
_ANSWER_MARK = "zprof-answer:"
_PACKAGES: Mapping[str, str] = {
    "pandas": "no DataFrames in Python",
    "pyarrow": "no run can be read or written",
    "numpy": "nothing can be measured",
    "msgspec": "no trace can be read",
    "isal": "no trace can be read",
    "rich": "no progress bars",
    "textual": "no terminal user interface",
    "jinja2": "no HTML reports",
}
_TORCH = """
import torch, torch.distributed as d
answer = {
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "hip": torch.version.hip,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    "backends": [name for name in ("gloo", "nccl") if getattr(d, f"is_{name}_available")()],
}
"""
_NVML = """
import pynvml
pynvml.nvmlInit()
driver = pynvml.nvmlSystemGetDriverVersion()
answer = [driver if isinstance(driver, str) else driver.decode(), pynvml.nvmlDeviceGetCount()]
"""
_HTA = """
import logging; logging.disable(logging.CRITICAL)
import hta.trace_analysis
from importlib.metadata import version
answer = version("HolisticTraceAnalysis")
"""
_KERNEL = """
from importlib.metadata import version
import cuda.core, cuda.bindings.nvrtc as nvrtc
answer = [version("cuda-core"), *nvrtc.nvrtcVersion()[1:]]
"""
#: Recording a few steps needs tens of megabytes per rank.
_MIN_FREE_BYTES = 1 << 30
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_MONITORING = ("TORCH_NCCL_ENABLE_MONITORING",)
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_STACKS = ("TORCH_INCLUDE_STACK_TRACE",)
_ONLY_ACTIVE = ("TORCH_INCLUDE_ONLY_ACTIVE",)
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
_DEFAULT_ENTRIES = 2000
#: A few steps of a large model need a few hundred entries.
_FEW_ENTRIES = 100
#: Values that torch reads as true and false, ignoring case.
_TRUE, _FALSE = ("1", "t", "true", "y", "yes"), ("0", "f", "false", "n", "no")
_WITHOUT = "a job that hangs leaves no dump for zprof hang"


class ProbeAnswer(Struct, frozen=True, kw_only=True):
    """A probe's answer as a JSON value, or None and the reason."""

    value: Any
    failure: str = ""


def run_probe(code: str, seconds: float = _TIMEOUT_S) -> ProbeAnswer:
    """Run ``code``, which must assign its result to the variable ``answer``."""
    program = f"{code}\nimport json\nprint({_ANSWER_MARK!r} + json.dumps(answer))"
    try:
        completed = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ProbeAnswer(value=None, failure=f"no result ({type(error).__name__})")
    lines = [line for line in completed.stdout.splitlines() if line.startswith(_ANSWER_MARK)]
    if completed.returncode or not lines:
        errors = completed.stderr.strip().splitlines()
        failure = errors[-1][:_MAX_FAILURE_LETTERS] if errors else f"exit code {completed.returncode}"
        return ProbeAnswer(value=None, failure=failure)
    return ProbeAnswer(value=json.loads(lines[-1].removeprefix(_ANSWER_MARK)))


Probe = Callable[[str], ProbeAnswer]


def examine(probe: Probe = run_probe) -> Doctor:
    """Run all checks, each library in its own process."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    checks = [
        DoctorCheck(name="python", status=CheckStatus.OK, found=found),
        *[_check_package(name, without) for name, without in _PACKAGES.items()],
        *_check_torch(probe(_TORCH)),
        _check_nvml(probe(_NVML)),
    ]
    checks += [
        _check_hta(probe(_HTA)),
        _check_kernel(probe(_KERNEL)),
        check_flight_recorder(),
        _check_extra("dask", Extra.DASK, "distributed", "traces can only be imported on this machine"),
        _check_extra("mcp", Extra.MCP, "mcp", "no zprof mcp"),
        _check_extra("sql", Extra.SQL, "duckdb", "no zprof query, no run.sql()"),
        _check_disk(),
        _check_cache(),
    ]
    return Doctor(zprof_version=__version__, checks=tuple(checks))


def _check_package(name: str, without: str) -> DoctorCheck:
    found = _installed_version(name)
    if found is None:
        return _broken_check(name, _NOT_INSTALLED, without, f"pip install {name}")
    return DoctorCheck(name=name, status=CheckStatus.OK, found=found)


def _check_torch(answer: ProbeAnswer) -> Sequence[DoctorCheck]:
    if answer.value is None:
        without = "nothing can be recorded, but runs can be read"
        return [_check_failed_extra("torch", Extra.RECORD, answer.failure, without)]
    torch = answer.value
    backends = ", ".join(torch["backends"]) or "no collective backend"
    devices = torch["devices"]
    if isinstance(devices, list) and devices:
        gpu = DoctorCheck(name="gpu", status=CheckStatus.OK, found=f"{len(devices)} x {devices[0]}")
    else:
        built = torch["cuda"] or torch["hip"]
        found = "torch finds no device" if built else "torch is a CPU-only build"
        remedy = "check that nvidia-smi lists a device" if built else "install a CUDA build of torch"
        gpu = _absent_check("gpu", found, "GPU times and memory are not measured", remedy)
    return [DoctorCheck(name="torch", status=CheckStatus.OK, found=f"{torch['version']}, {backends}"), gpu]


def _check_nvml(answer: ProbeAnswer) -> DoctorCheck:
    without = "memory outside torch's allocator is not measured"
    if _installed_version("nvidia-ml-py") is None:
        return _absent_check("nvml", _NOT_INSTALLED, without, get_install_command(Extra.RECORD))
    if answer.value is None:
        return _absent_check("nvml", answer.failure, without, "install the NVIDIA driver")
    driver, count = answer.value
    return DoctorCheck(name="nvml", status=CheckStatus.OK, found=f"driver {driver}, {count} devices")


def _check_hta(answer: ProbeAnswer) -> DoctorCheck:
    if answer.value is None:
        return _check_failed_extra("hta", Extra.HTA, answer.failure, "no comparison with HTA")
    return DoctorCheck(name="hta", status=CheckStatus.OK, found=str(answer.value))


def _check_kernel(answer: ProbeAnswer) -> DoctorCheck:
    without = "the reference engine uses torch's fused AdamW"
    if answer.value is None:
        return _absent_check("cuda kernel", answer.failure, without, get_install_command(Extra.CUDA))
    core, major, minor = answer.value
    return DoctorCheck(
        name="cuda kernel", status=CheckStatus.OK, found=f"cuda-core {core}, NVRTC {major}.{minor}"
    )


def _check_extra(name: str, extra: Extra, distribution: str, without: str) -> DoctorCheck:
    """Check an extra that is one package, by its version."""
    found = _installed_version(distribution)
    if found is None:
        return _absent_check(name, _NOT_INSTALLED, without, get_install_command(extra))
    return DoctorCheck(name=name, status=CheckStatus.OK, found=found)


def _check_disk() -> DoctorCheck:
    free = shutil.disk_usage(".").free
    found = f"{format_bytes(free)} free in this folder"
    if free < _MIN_FREE_BYTES:
        return _broken_check("disk", found, "recordings may be cut short", "record to another folder: -o RUN")
    return DoctorCheck(name="disk", status=CheckStatus.OK, found=found)


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_failed_extra(name: str, extra: Extra, failure: str, without: str) -> DoctorCheck:
    """Return the check for a failed probe: absent if the extra is not installed, else broken."""
    if not is_installed(extra):
        return _absent_check(name, _NOT_INSTALLED, without, get_install_command(extra))
    return _broken_check(name, failure, without, f"reinstall it: {get_install_command(extra)}")


def _absent_check(name: str, found: str, without: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name=name, status=CheckStatus.ABSENT, found=found, without=without, remedy=remedy)


def _broken_check(name: str, found: str, without: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name=name, status=CheckStatus.BROKEN, found=found, without=without, remedy=remedy)


def _check_cache() -> DoctorCheck:
    """Report the size of the cache, which is limited."""
    folder = find_cache_folder()
    if folder is None:
        remedy = "set HOME or XDG_CACHE_HOME"
        return _absent_check("cache", "no home folder", "traces are imported again each time", remedy)
    size = sum(entry.bytes for kind in CacheKind for entry in list_entries(kind))
    return DoctorCheck(
        name="cache",
        status=CheckStatus.OK,
        found=f"{format_bytes(size)} of imports and reports in {folder} (zprof cache)",
    )


def check_flight_recorder(environment: Mapping[str, str] = os.environ) -> DoctorCheck:
    """Return whether a hang would leave a dump; with the defaults of torch 2.13 it does."""
    problems = [
        problem
        for problem in (
            _check_size(environment),
            _check_flag(environment, _DUMP, "nothing is written at a timeout"),
            _check_flag(environment, _MONITORING, "the thread that writes the dump is off"),
            _check_heartbeat(environment),
            _check_folder(environment),
        )
        if problem
    ]
    if problems:
        found, remedies = zip(*problems, strict=True)
        return DoctorCheck(
            name="hang dumps",
            status=CheckStatus.ABSENT,
            found="; ".join(found),
            without=_WITHOUT,
            remedy="set " + " ".join(dict.fromkeys(remedies)),
        )
    # List what a written dump would lack.
    losses = []
    _, value = _read(environment, _SIZE)
    if value is not None and int(value) < _FEW_ENTRIES:
        losses.append(f"{value} operations may be too few: {_SIZE[0]}={_DEFAULT_ENTRIES}")
    if (_read(environment, _STACKS)[1] or "1").lower() in _FALSE:
        losses.append(f"without lines of code: {_STACKS[0]}=1")
    if (_read(environment, _ONLY_ACTIVE)[1] or "0").lower() in _TRUE:
        losses.append(f"without what had finished: {_ONLY_ACTIVE[0]}=0")
    details = [*_describe_size(environment), *losses]
    return DoctorCheck(name="hang dumps", status=CheckStatus.OK, found="; ".join(details))


def _check_size(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _SIZE)
    if value is None:
        return None
    remedy = f"{_SIZE[0]}={_DEFAULT_ENTRIES}"
    if not _is_integer(value):
        return f"{name}={value[:40]} is no number: torch stops", remedy
    return (f"{name}={value}: no operation is kept", remedy) if int(value) <= 0 else None


def _check_flag(
    environment: Mapping[str, str], names: Sequence[str], consequence: str
) -> tuple[str, str] | None:
    """Return the problem with a flag that must be on, as by default."""
    name, value = _read(environment, names)
    if value is None or value.lower() in _TRUE:
        return None
    if value.lower() in _FALSE:
        return f"{name}={value}: {consequence}", f"{names[0]}=1"
    return f"{name}={value[:40]} is neither true nor false: torch stops", f"{names[0]}=1"


def _check_heartbeat(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _HEARTBEAT)
    if value is None or (_is_integer(value) and int(value) > 0):
        return None
    return f"{name}={value[:40]}: not a number of seconds", f"{name}=480"


def _check_folder(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _FILE)
    if value is None:
        return None
    folder = Path(value).parent
    remedy = f"{name}=FOLDER/rank_ with a folder that exists and can be written"
    if not folder.is_dir():
        return f"{name}: the folder {folder} does not exist, and torch does not create it", remedy
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{name}: {folder} cannot be written", remedy
    return None


def _describe_size(environment: Mapping[str, str]) -> list[str]:
    _, value = _read(environment, _SIZE)
    _, path = _read(environment, _FILE)
    where = f"to {path}RANK" if path else "to ~/.cache/torch or /tmp, by torch's version"
    if value is None:
        return [
            f"NCCL ranks dump their last operations at a timeout {where}",
            f"their number is torch's default, {_DEFAULT_ENTRIES} in 2.13; {_SIZE[0]} sets it",
        ]
    return [f"NCCL ranks dump their last {int(value)} operations at a timeout {where}"]


def _read(environment: Mapping[str, str], names: Sequence[str]) -> tuple[str, str | None]:
    """Return the name and value of the variable that takes effect in torch."""
    return next(((name, environment[name]) for name in names if name in environment), (names[0], None))


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()
