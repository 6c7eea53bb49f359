"""Check which features zprof can use on this machine; each library is probed in its own process."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec import Struct

from zprof.cache.folder import find_cache_folder, list_entries
from zprof.integrations.flight_recorder_settings import check_flight_recorder
from zprof.model.cache import CacheKind
from zprof.model.doctor import CheckStatus, Doctor, DoctorCheck
from zprof.model.extras import Extra, get_install_command, is_installed
from zprof.model.formatting import format_bytes
from zprof.version import __version__

_TIMEOUT_S = 120
_MAX_FAILURE_LETTERS = 200
_NOT_INSTALLED = "not installed"
#: Prefix of the line with the answer, to tell it apart from the output of libraries.
_ANSWER_MARK = "zprof-answer:"
_PACKAGES: Mapping[str, str] = {
    "pandas": "nothing can be analyzed",
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
        return ProbeAnswer(
            value=None, failure=_last_line(completed.stderr) or f"exit code {completed.returncode}"
        )
    return ProbeAnswer(value=json.loads(lines[-1].removeprefix(_ANSWER_MARK)))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_MAX_FAILURE_LETTERS] if lines else ""


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
        _check_dask(),
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
    return [
        DoctorCheck(name="torch", status=CheckStatus.OK, found=f"{torch['version']}, {backends}"),
        _check_devices(torch),
    ]


def _check_devices(torch: Mapping[str, object]) -> DoctorCheck:
    devices = torch["devices"]
    if isinstance(devices, list) and devices:
        return DoctorCheck(name="gpu", status=CheckStatus.OK, found=f"{len(devices)} x {devices[0]}")
    built = torch["cuda"] or torch["hip"]
    found = "torch finds no device" if built else "torch is a CPU-only build"
    remedy = "check that nvidia-smi lists a device" if built else "install a CUDA build of torch"
    return _absent_check("gpu", found, "GPU times and memory are not measured", remedy)


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


def _check_dask() -> DoctorCheck:
    found = _installed_version("distributed")
    if found is None:
        without = "traces can only be imported on this machine"
        return _absent_check("dask", _NOT_INSTALLED, without, get_install_command(Extra.DASK))
    return DoctorCheck(name="dask", status=CheckStatus.OK, found=found)


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
    """Return the check of a failed probe: absent if the extra is not installed, else broken."""
    if not is_installed(extra):
        return _absent_check(name, _NOT_INSTALLED, without, get_install_command(extra))
    return _broken_check(name, failure, without, f"reinstall it: {get_install_command(extra)}")


def _absent_check(name: str, found: str, without: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name=name, status=CheckStatus.ABSENT, found=found, without=without, remedy=remedy)


def _broken_check(name: str, found: str, without: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name=name, status=CheckStatus.BROKEN, found=found, without=without, remedy=remedy)


def _check_cache() -> DoctorCheck:
    """Report the size of what is kept, which has limits."""
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
