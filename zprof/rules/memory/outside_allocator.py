"""ZP209 outside_allocator: device memory in use outside of torch's allocator.

    context + collectives (the growth at the first collective of each group) + other processes

A context takes about half a GB and NCCL 0.5 to 0.7 GB per group (nccl issue 964), which is normal. Reported
from 10 % of the device's memory, where a finding has high severity; if the device's size is unknown, from
a quarter of the used memory and 2 GiB. Other processes can be ended. Up to half of the collectives' memory
goes away with fewer channels or groups. The context remains.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_device_gap,
)

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


class _Outside(Struct, frozen=True, kw_only=True):
    context_bytes: int
    collectives_bytes: int
    others_bytes: int
    apart_ns: int

    @property
    def bytes(self) -> int:
        return self.context_bytes + self.collectives_bytes + self.others_bytes


def outside_allocator(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if memory outside of the allocator takes a large part of the device."""
    big = find_largest_rank(analysis)
    if big is None or not big.on_gpu:
        return None
    known = [device for device in big.devices if _known_terms(device)]
    if not known:
        return missing_device_gap(Cause.OUTSIDE_ALLOCATOR)
    device = min(known, key=lambda entry: entry.apart_ns or 0)
    outside = _Outside(
        context_bytes=device.context_bytes or 0,
        collectives_bytes=device.collectives_bytes or 0,
        others_bytes=device.other_processes_bytes or 0,
        apart_ns=device.apart_ns or 0,
    )
    is_there = outside.bytes >= _limit(device) and is_worth(outside.bytes, big)
    return _finding(analysis, big, device, outside) if is_there else None


def _known_terms(device: DeviceMemory) -> list[int]:
    """Return the known terms: in a container NVML may report the used memory, but not by which process."""
    terms = (device.context_bytes, device.collectives_bytes, device.other_processes_bytes)
    return [term for term in terms if term is not None]


def _limit(device: DeviceMemory) -> float:
    if device.device_total_bytes:
        return _SHARE_RATIO * device.device_total_bytes
    used = device.device_used_bytes or device.process_bytes or 0
    return max(_USED_BYTES, _USED_RATIO * used)


def _finding(analysis: RunAnalysis, big: LargestRank, device: DeviceMemory, outside: _Outside) -> Finding:
    terms = {
        "other processes": outside.others_bytes,
        "collectives": outside.collectives_bytes,
        "context and libraries": outside.context_bytes,
    }
    first = max(terms, key=lambda name: terms[name])
    whole = device.device_total_bytes
    share = f" ({format_percent(outside.bytes / whole)} of the device)" if whole else ""
    evidence = [
        make_fact(name.replace(" ", "_"), size, rank=big.rank) for name, size in terms.items() if size
    ]
    if device.device_used_bytes:
        evidence.append(make_fact("device_used", device.device_used_bytes, rank=big.rank))
    return make_memory_finding(
        analysis,
        Cause.OUTSIDE_ALLOCATOR,
        big,
        sentence=f"{format_bytes(outside.bytes)} of memory on rank {big.rank}'s device{share} is outside "
        f"of torch's allocator, mostly {first} ({format_bytes(terms[first])})",
        evidence=evidence,
        saving_bytes=(
            outside.others_bytes,
            outside.others_bytes + _COLLECTIVES_RATIO * outside.collectives_bytes,
        ),
        confidence=limit_confidence(
            Confidence.MEDIUM if first == "context and libraries" else Confidence.HIGH, big, 0
        ),
        fix="\n".join(_fixes(first, outside)),
        disprove="nvidia-smi lists the device's processes; NCCL_DEBUG=INFO lists the communicators",
    )


def _fixes(first: str, outside: _Outside) -> list[str]:
    fixes = [_OTHER_PROCESSES_FIX] if outside.others_bytes >= outside.bytes / 4 else []
    fixes += [_GROUPS_FIX] if outside.collectives_bytes >= outside.bytes / 4 else []
    return fixes + ([_CONTEXT_FIX] if first == "context and libraries" else [])
