"""What an error of NVML means: whether to ask again, and what the user can do about it."""

from dataclasses import dataclass
from typing import Any

from zprof.collectors.faults import first_line

_FOR_GOOD = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_FOUND",
)
_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNINITIALIZED")
_REMEDIES = {
    "NVML_ERROR_NOT_SUPPORTED": "this GPU, its mode (MIG, WDDM, virtual) or its driver does not offer it",
    "NVML_ERROR_NO_PERMISSION": "ask the administrator of the machine: the driver keeps it from this user",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "install a newer NVIDIA driver",
    "NVML_ERROR_GPU_IS_LOST": "see nvidia-smi and the kernel's log (Xid): the GPU fell off the bus",
    "NVML_ERROR_RESET_REQUIRED": "reset the GPU (nvidia-smi --gpu-reset) when nothing runs on it",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install the NVIDIA driver; in a container let the driver's tools in: "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the NVIDIA driver (nvidia-smi must work)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "reboot, or reload the driver: it was updated while it ran",
}
_ANY_REMEDY = "see whether nvidia-smi shows it"


class Unseen(Exception):
    """NVML answered, but what it said does not tell what was asked for."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a query gave nothing.  ``for_good``: never ask again; ``lost``: the device is gone."""

    reason: str
    remedy: str
    for_good: bool
    lost: bool


def refusal(nvml: Any, error: Exception) -> Refusal:
    """What ``error``, raised by a query, means."""
    if isinstance(error, Unseen):
        return Refusal(reason=first_line(error), remedy=error.remedy, for_good=False, lost=False)
    names = _names(nvml, error)
    if not names:  # not NVML's own: an answer that we do not understand, or a function that is not there
        return Refusal(reason=first_line(error), remedy=_ANY_REMEDY, for_good=True, lost=False)
    remedy = next((_REMEDIES[name] for name in names if name in _REMEDIES), _ANY_REMEDY)
    return Refusal(
        reason=f"NVML says: {first_line(error)}",
        remedy=remedy,
        for_good=any(name in _FOR_GOOD for name in names),
        lost=any(name in _LOST for name in names),
    )


def _names(nvml: Any, error: Exception) -> list[str]:
    """The names of an NVML error's code; ``["?"]`` where the code has none, nothing for other errors."""
    if not isinstance(error, nvml.NVMLError):
        return []
    code = getattr(error, "value", None)
    known = (*_FOR_GOOD, *_LOST, *_REMEDIES)
    return [name for name in known if getattr(nvml, name, None) == code] or ["?"]
