"""Finds NVML's handle of a device that torch uses.

CUDA_VISIBLE_DEVICES renumbers, so the index says nothing: the UUID does, then the PCI address.  A MIG
instance has a UUID of its own; its PCI address is that of the whole GPU, whose numbers are not its own.
"""

from typing import Any

from zprof.collectors.devices.cuda import DeviceIdentity
from zprof.collectors.devices.refusals import Unseen

_REMEDY = "see nvidia-smi -L: it lists the UUIDs that the driver shows to this process"


def find_handle(nvml: Any, identity: DeviceIdentity) -> Any:
    """NVML's handle.

    Raises:
        Unseen: NVML does not show the device, or only the GPU of which it is a MIG instance.
        Exception: what NVML raised, where that is worth asking again.
    """
    if identity.uuid is not None:
        for prefix in ("GPU-", "MIG-"):
            try:
                return nvml.nvmlDeviceGetHandleByUUID(prefix + identity.uuid.removeprefix(prefix))
            except nvml.NVMLError as error:
                if not _unknown(nvml, error):
                    raise
    return _by_bus_id(nvml, identity)


def _by_bus_id(nvml: Any, identity: DeviceIdentity) -> Any:
    if identity.bus_id is None:
        raise Unseen(f"NVML knows no device {identity.uuid}", _REMEDY)
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(identity.bus_id)
    except nvml.NVMLError as error:
        if not _unknown(nvml, error):
            raise
        raise Unseen(f"NVML knows no device {identity.uuid} at {identity.bus_id}", _REMEDY) from error
    if _is_split(nvml, handle):
        raise Unseen(f"NVML shows the GPU at {identity.bus_id}, but not its MIG instance", _REMEDY)
    return handle


def _unknown(nvml: Any, error: Any) -> bool:
    return error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # GPUs without MIG
        return False
