"""Open NVML through pynvml, find the handle of a device that torch uses, and turn NVML's errors into a
reason, a remedy and a decision to retry.

CUDA_VISIBLE_DEVICES renumbers devices, so a handle is found by UUID, then by PCI address. A MIG instance has
its own UUID; its PCI address belongs to the entire GPU, whose counters are not those of the instance.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

from zprof.base.errors import Extra, get_install_command
from zprof.collectors.record.base import first_line
from zprof.collectors.record.torch_private import has_cuda_context
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

#: Device files of NVIDIA's driver on Linux and on WSL.
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

LoadLibrary = Callable[[], Any]
_UUID_REMEDY = "run nvidia-smi -L to list the UUIDs that the driver exposes to this process"
_PERMANENT_ERRORS = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_FOUND",
)
_DEVICE_LOST_ERRORS = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNINITIALIZED")
_REMEDIES = {
    "NVML_ERROR_NOT_SUPPORTED": "this GPU, its mode (MIG, WDDM, virtual) or its driver does not support it",
    "NVML_ERROR_NO_PERMISSION": "ask the administrator for permission: this user may not read it",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "install a newer NVIDIA driver",
    "NVML_ERROR_GPU_IS_LOST": "check nvidia-smi and the kernel log (Xid): the GPU fell off the bus",
    "NVML_ERROR_RESET_REQUIRED": "reset the GPU (nvidia-smi --gpu-reset) when it is not in use",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install the NVIDIA driver; in a container, enable its tools: "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the NVIDIA driver (nvidia-smi must work)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "reboot, or reload the driver: it was updated while in use",
}
_DEFAULT_REMEDY = "check that nvidia-smi shows it"


class DeviceIdentity(Struct, frozen=True, kw_only=True):
    """Driver-level ids of a device. A torch index is not one: it counts visible devices only.

    ``uuid`` has no prefix (for a MIG instance, it is the UUID of the instance); ``bus_id`` is the PCI
    address.
    """

    uuid: str | None
    bus_id: str | None


def load_pynvml() -> Any:
    """Import pynvml, which does not load the NVML library yet."""
    return importlib.import_module("pynvml")


def has_nvidia_driver() -> bool:
    """Return True if this machine runs the NVIDIA driver.

    Does not initialize CUDA: a program that forks after that cannot use CUDA in its children.
    """
    return any(path.exists() for path in _DRIVER_FILES)


def open_nvml(load: LoadLibrary) -> Any | Gap:
    """Return the initialized library, or a gap with the reason why it is unavailable."""
    try:
        nvml = load()
    except ImportError as error:
        return make_gap("nvml_not_installed", error=error, command=get_install_command(Extra.RECORD))
    try:
        nvml.nvmlInit()
    except Exception as error:
        failure = explain_nvml_error(nvml, error)
        return make_gap("nvml_failed", reason=failure.reason, remedy=failure.remedy)
    return nvml


def find_handle(nvml: Any, identity: DeviceIdentity) -> Any:
    """Return NVML's handle of the device.

    Raises:
        UnusableAnswer: NVML does not list the device, or lists only the GPU that contains the MIG instance.
        Exception: NVML's own error, if a retry may help.
    """
    if identity.uuid is not None:
        for prefix in ("GPU-", "MIG-"):
            try:
                return nvml.nvmlDeviceGetHandleByUUID(prefix + identity.uuid.removeprefix(prefix))
            except nvml.NVMLError as error:
                if not _is_unknown_device(nvml, error):
                    raise
    if identity.bus_id is None:
        raise UnusableAnswer(f"NVML does not list device {identity.uuid}", _UUID_REMEDY)
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(identity.bus_id)
    except nvml.NVMLError as error:
        if not _is_unknown_device(nvml, error):
            raise
        raise UnusableAnswer(
            f"NVML does not list device {identity.uuid} at {identity.bus_id}", _UUID_REMEDY
        ) from error
    try:
        has_mig = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # GPUs without MIG
        has_mig = False
    if has_mig:
        raise UnusableAnswer(
            f"NVML lists the GPU at {identity.bus_id}, but not its MIG instance", _UUID_REMEDY
        )
    return handle


def _is_unknown_device(nvml: Any, error: Any) -> bool:
    return error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)


class UnusableAnswer(Exception):
    """NVML answered, but without the requested value."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class QueryFailure(Struct, frozen=True, kw_only=True):
    """Reason why a query failed. ``is_permanent``: do not retry; ``is_device_lost``: the device is gone."""

    reason: str
    remedy: str
    is_permanent: bool
    is_device_lost: bool


def explain_nvml_error(nvml: Any, error: Exception) -> QueryFailure:
    """Return the reason and remedy for an error that a query raised."""
    if isinstance(error, UnusableAnswer):
        return QueryFailure(
            reason=first_line(error), remedy=error.remedy, is_permanent=False, is_device_lost=False
        )
    names = []  # of an NVML error's code, ``["?"]`` if unknown; empty for other exceptions
    if isinstance(error, nvml.NVMLError):
        code = getattr(error, "value", None)
        known = (*_PERMANENT_ERRORS, *_DEVICE_LOST_ERRORS, *_REMEDIES)
        names = [name for name in known if getattr(nvml, name, None) == code] or ["?"]
    if not names:  # not an NVML error: an answer that cannot be parsed, or a missing function
        return QueryFailure(
            reason=first_line(error), remedy=_DEFAULT_REMEDY, is_permanent=True, is_device_lost=False
        )
    remedy = next((_REMEDIES[name] for name in names if name in _REMEDIES), _DEFAULT_REMEDY)
    return QueryFailure(
        reason=f"NVML error: {first_line(error)}",
        remedy=remedy,
        is_permanent=any(name in _PERMANENT_ERRORS for name in names),
        is_device_lost=any(name in _DEVICE_LOST_ERRORS for name in names),
    )


class TorchCuda:
    """What device counters ask of torch.

    Safe on any thread: creates no context and never waits for a device.
    """

    def is_built(self) -> bool:
        """Return True if this is a CUDA build of torch."""
        return torch.version.cuda is not None

    def in_use(self) -> bool:
        """Return True if torch has initialized CUDA; False in a child forked after that."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def devices(self) -> list[int]:
        """Return the devices on which this process has a context; none before CUDA is initialized."""
        if not self.in_use():
            return []
        return [index for index in range(torch.cuda.device_count()) if self._has_context(index)]

    def identity(self, index: int) -> DeviceIdentity:
        """Return UUID and PCI address from torch's device properties."""
        properties: Any = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        bus_id = None
        if None not in parts:
            domain, bus, device = (int(part_id) for part_id in parts if part_id is not None)
            bus_id = f"{domain:08x}:{bus:02x}:{device:02x}.0"
        return DeviceIdentity(uuid=None if uuid is None else str(uuid), bus_id=bus_id)

    def reserved_bytes(self, index: int) -> int | None:
        """Return the allocator's counter; None if a pluggable allocator keeps no statistics."""
        counters: Any = torch.cuda.memory_stats_as_nested_dict(index)
        try:
            return int(counters["reserved_bytes"]["all"]["current"])
        except (KeyError, TypeError):
            return None

    def _has_context(self, index: int) -> bool:
        has_context = has_cuda_context(index)
        return bool(self.reserved_bytes(index)) if has_context is None else has_context
