"""ZP209: device memory in use outside of torch's allocator.

    context + collectives (the growth at the first collective of each group) + other processes

A context takes about half a GB and NCCL 0.5 to 0.7 GB per group (nccl issue 964), which is normal. Reported
from 10 % of the device's memory, which is high severity. If the device's size is unknown, from a quarter of
the used memory and 2 GiB. Other processes can be ended. Up to half of the collectives' memory goes away with
fewer channels or groups. The context remains.
"""

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.analysis.memory.largest_rank import (
    MISSING_DEVICE,
    find_largest_rank,
    is_worth,
    limit_confidence,
)
from zprof.base.formatting import format_percent
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.model.findings import Confidence
from zprof.model.memory import DeviceMemory
from zprof.model.quantities import Unit

_SHARE_RATIO = 0.10
_USED_RATIO = 0.25
_USED_BYTES = 2 << 30
_COLLECTIVES_RATIO = 0.5

_OTHER_PROCESSES_FIX = (
    "another process holds memory on this device: nvidia-smi lists it (a debugger, a notebook, a rank)"
)
_GROUPS_FIX = (
    "fewer process groups: one new_group per distinct set of ranks, not one per layer\n"
    "NCCL_MAX_NCHANNELS=8, NCCL_BUFFSIZE=2097152: smaller buffers in each group, but slower large messages"
)
_CONTEXT_FIX = (
    "one process per device; CUDA_MODULE_LOADING=LAZY loads kernels on first use\n"
    "remove extensions and libraries (cuDNN, cuBLAS workspaces) that the program does not need"
)

CAUSE = Cause(
    id="ZP209",
    name="outside_allocator",
    meaning="Much of the device's memory is held outside of torch's allocator.",
    needs=(Need.MEMORY, Need.DEVICE),
    sentence="{size:bytes} of memory on rank {rank}'s device{of_device} is outside of torch's allocator, "
    "mostly {first} ({first_size:bytes})",
    evidence={
        "other_processes": ("other processes", Unit.BYTES),
        "collectives": ("collectives", Unit.BYTES),
        "context_and_libraries": ("context and libraries", Unit.BYTES),
        "device_used": ("device memory used by all processes", Unit.BYTES),
    },
    disprove="nvidia-smi lists the device's processes; NCCL_DEBUG=INFO lists the communicators",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if memory outside of the allocator takes a large part of the device."""
    largest = find_largest_rank(analysis)
    if largest is None or not largest.on_gpu:
        return None
    known = [device for device in largest.devices if _list_known_terms(device)]
    if not known:
        return MISSING_DEVICE
    device = min(known, key=lambda entry: entry.apart_ns or 0)
    others, collectives = device.other_processes_bytes or 0, device.collectives_bytes or 0
    terms = {
        "other_processes": others,
        "collectives": collectives,
        "context_and_libraries": device.context_bytes or 0,
    }
    size, total = sum(terms.values()), device.device_total_bytes
    if size < _min_size_bytes(device) or not is_worth(size, largest):
        return None
    first = max(terms, key=lambda name: terms[name])
    is_context = first == "context_and_libraries"
    fixes = [_OTHER_PROCESSES_FIX] if others >= size / 4 else []
    fixes += [_GROUPS_FIX] if collectives >= size / 4 else []
    fixes += [_CONTEXT_FIX] if is_context else []
    facts = [make_fact(key, part, rank=largest.rank) for key, part in terms.items() if part]
    if device.device_used_bytes:
        facts.append(make_fact("device_used", device.device_used_bytes, rank=largest.rank))
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.MEDIUM if is_context else Confidence.HIGH, largest, 0),
        facts=facts,
        saving_bytes=(others, others + _COLLECTIVES_RATIO * collectives),
        words={
            "size": size,
            "of_device": f" ({format_percent(size / total)} of the device)" if total else "",
            "first": first.replace("_", " "),
            "first_size": terms[first],
        },
        fix="\n".join(fixes),
    )


def _list_known_terms(device: DeviceMemory) -> list[int]:
    """Return the known terms: in a container NVML may report the used memory, but not its processes."""
    terms = (device.context_bytes, device.collectives_bytes, device.other_processes_bytes)
    return [term for term in terms if term is not None]


def _min_size_bytes(device: DeviceMemory) -> float:
    if device.device_total_bytes:
        return _SHARE_RATIO * device.device_total_bytes
    used = device.device_used_bytes or device.process_bytes or 0
    return max(_USED_BYTES, _USED_RATIO * used)
