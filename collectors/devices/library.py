"""Opens NVML: the driver's own library, through ``pynvml`` of nvidia-ml-py."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zprof.collectors.devices.refusals import refusal
from zprof.model.gaps import Gap

WHAT = "device counters"
#: Made by NVIDIA's driver on Linux, and by the one for WSL.
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

Load = Callable[[], Any]


def load_pynvml() -> Any:
    """The module; importing it does not open the library."""
    return importlib.import_module("pynvml")


def driver_is_there() -> bool:
    """Whether this machine runs NVIDIA's driver, found without starting CUDA: a program that forks after
    CUDA has started cannot use it in its children."""
    return any(path.exists() for path in _DRIVER_FILES)


def open_nvml(load: Load) -> Any | Gap:
    """The open library, or why there is none."""
    try:
        nvml = load()
    except ImportError as error:
        return _missing(f"pynvml cannot be imported: {error}", "pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
    except Exception as error:
        refused = refusal(nvml, error)
        return _missing(refused.reason, refused.remedy)
    return nvml


def no_driver() -> Gap:
    """torch uses a GPU, but no driver of NVIDIA's shows itself."""
    return _missing(
        "no NVIDIA driver shows itself to this process (/dev/nvidiactl)",
        "in a container pass the GPUs in with the NVIDIA runtime; counters of other makers are not read",
    )


def _missing(reason: str, remedy: str) -> Gap:
    return Gap(what=WHAT, reason=reason, remedy=remedy)
