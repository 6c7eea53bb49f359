"""The memory of one rank from a live recording: its own device, the host beside it, and the init window."""

from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from zprof.analysis.laws import state_law
from zprof.analysis.memory.blocks.device import device_memory
from zprof.analysis.memory.blocks.owners import owners_of
from zprof.analysis.memory.leaves.counters import CounterPeak, counter_peak, counters_of
from zprof.analysis.memory.leaves.modules import module_peaks
from zprof.analysis.memory.leaves.parts import basis_bytes, largest, parts_at
from zprof.analysis.memory.leaves.phases import phase_peaks
from zprof.analysis.memory.leaves.states import measured_states
from zprof.analysis.memory.leaves.thinning import thinned
from zprof.analysis.memory.leaves.truth import UNSEEN, Truth, truth_of
from zprof.analysis.memory.rank.answer import RankAnswer, no_memory
from zprof.analysis.memory.rank.rank_lives import Peak, RankLives, devices_of, rank_lives
from zprof.analysis.memory.rank.tables import checked_frame, stacks_of
from zprof.analysis.memory.rank.timeline import INIT, Timeline, timeline_of
from zprof.model.gaps import Gap
from zprof.model.memory import Basis, MemoryPart, RankMemory
from zprof.model.units import format_bytes
from zprof.run.reader import Run

RECORD_MEMORY = "record again with a memory window: zprof.steps(memory=2)"
_HOST, _META = "cpu", "meta"
#: Accelerators of one process that are looked at, the busiest first.
_MOST_DEVICES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """One device of a rank in one window."""

    name: str
    lives: RankLives
    peak: Peak


def live_memory(run: Run, rank: int) -> RankAnswer:
    """All leaves of one rank.

    Raises:
        BadInput: a table is damaged.
    """
    missing = [name for name in ("alloc", "role", "mark") if not run.has_table(rank, name)]
    if missing:
        return no_memory(rank, f"no table {missing[0]!r} was recorded", RECORD_MEMORY)
    mark, alloc = checked_frame(run, rank, "mark"), _counted(checked_frame(run, rank, "alloc"))
    timeline = timeline_of(mark)
    if timeline is None or alloc.empty:
        return no_memory(rank, "no memory window was recorded", RECORD_MEMORY)
    devices = _devices(alloc, checked_frame(run, rank, "role"), timeline)
    own, host, others = _placed(devices)
    samples = checked_frame(run, rank, "samples") if run.has_table(rank, "samples") else None
    counter = None if samples is None else counter_peak(samples, own.name, timeline)
    truth, beside = _truth(run, rank, own, counter), [_truth(run, rank, device, None) for device in host]
    gaps = [gap for known in (truth, *beside) for gap in known.gaps] + [
        _unshown(rank, own, o) for o in others
    ]
    around = device_memory(run, rank, own.name, own.peak.time_ns, owners_of(own.lives))
    memory = replace(
        _rank_memory(run, rank, own, truth),
        reserved_unused_bytes=_unused(around.reserved_unused_bytes, truth),
        non_pytorch_bytes=around.non_pytorch_bytes,
    )
    stacks = partial(stacks_of, run, rank, alloc)
    return RankAnswer(
        per_rank=(memory,),
        top=largest(rank, own.lives, own.peak.time_ns, stacks),
        phases=phase_peaks(rank, own.lives),
        modules=module_peaks(rank, own.lives, own.peak.time_ns),
        states=measured_states(rank, own.lives),
        devices=around.devices,
        counters=() if samples is None else counters_of(rank, samples, _recorded_steps(run, rank)),
        host=tuple(_rank_memory(run, rank, d, t) for d, t in zip(host, beside, strict=True)),
        init=_init(run, rank, mark),
        timelines=(thinned(rank, own.name, own.lives),),
        gaps=tuple(dict.fromkeys([*gaps, *around.gaps])),
    )


def _recorded_steps(run: Run, rank: int) -> list[int]:
    """Steps of the rank's windows; its counters were sampled in all others too."""
    manifest = run.rank_manifests[rank]
    return [*manifest.memory_steps, *manifest.time_steps]


def _counted(alloc: pd.DataFrame) -> pd.DataFrame:
    """Rows of memory that an allocator of torch gave out; tensors on ``meta`` have none."""
    kept = alloc["source"].isin(["storage", "profiler"]) & (alloc["bytes"] > 0) & (alloc["device"] != _META)
    return alloc[kept]


def _devices(alloc: pd.DataFrame, role: pd.DataFrame, timeline: Timeline) -> list[_Device]:
    names = devices_of(alloc)
    shown = [name for name in names if name != _HOST][:_MOST_DEVICES]
    shown += [_HOST] if _HOST in names else []
    lives = {name: rank_lives(alloc, role, timeline, name) for name in shown}
    return [_Device(name=name, lives=each, peak=each.peak()) for name, each in lives.items()]


def _placed(devices: list[_Device]) -> tuple[_Device, list[_Device], list[_Device]]:
    """The rank's own device (its fullest accelerator, else the host), the host beside it, the others."""
    accelerators = [device for device in devices if device.name != _HOST]
    own = max(accelerators or devices, key=lambda device: device.peak.bytes)
    host = [device for device in devices if device.name == _HOST and device is not own]
    return own, host, [device for device in accelerators if device is not own]


def _truth(run: Run, rank: int, device: _Device, counter: CounterPeak | None) -> Truth:
    mode = run.rank_manifests[rank].memory_mode
    return truth_of(rank, device.peak, mode, device.lives.has_allocator_events, counter)


def _rank_memory(run: Run, rank: int, device: _Device, truth: Truth) -> RankMemory:
    peak, timeline = device.peak, device.lives.timeline
    unseen = MemoryPart(tenant="untagged", sub=UNSEEN, bytes=truth.unseen_bytes, basis=Basis.UNKNOWN)
    size, untagged = peak.bytes + truth.unseen_bytes, peak.untagged_bytes + truth.unseen_bytes
    return RankMemory(
        rank=rank,
        device=device.name,
        peak_bytes=size,
        peak_step=timeline.step_at(peak.time_ns),
        peak_phase=timeline.phase_at(peak.time_ns),
        tenants=peak.tenants,
        untagged_bytes=untagged,
        reserved_unused_bytes=None,
        non_pytorch_bytes=None,
        formula=state_law(run.manifest.training),
        state_bytes=device.lives.states(),
        upper_bound=truth.upper_bound,
        lower_bound=truth.lower_bound,
        method=truth.method,
        parts=(*parts_at(device.lives, peak.time_ns), *([unseen] if truth.unseen_bytes else [])),
        basis_bytes=basis_bytes(size, untagged),
    )


def _unused(reserved_beside_bytes: int | None, truth: Truth) -> int | None:
    """Reserved and not live, of what is reserved beside the blocks that were seen."""
    if reserved_beside_bytes is None or truth.lower_bound:
        return None
    unused = reserved_beside_bytes - truth.unseen_bytes
    return unused if unused >= 0 else None


def _init(run: Run, rank: int, mark: pd.DataFrame) -> tuple[RankMemory, ...]:
    """The peak from the start of the program to its first step; none where that was not watched."""
    timeline = timeline_of(mark, INIT)
    if timeline is None or not all(run.has_table(rank, name) for name in ("init_alloc", "init_role")):
        return ()
    alloc = _counted(checked_frame(run, rank, "init_alloc"))
    if alloc.empty:
        return ()
    own, _, _ = _placed(_devices(alloc, checked_frame(run, rank, "init_role"), timeline))
    return (_rank_memory(run, rank, own, _truth(run, rank, own, None)),)


def _unshown(rank: int, own: _Device, other: _Device) -> Gap:
    return Gap(
        what=f"memory of {other.name}",
        rank=rank,
        reason=f"this process uses several devices; the report shows the fullest, {own.name}; the peak of "
        f"{other.name} is {format_bytes(other.peak.bytes)}",
        remedy="run one process a device, or read Run.memory(rank)",
    )
