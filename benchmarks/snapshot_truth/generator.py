"""Generate the snapshot of a random program, with the truth about it."""

import random
from dataclasses import replace
from typing import Any

from benchmarks.snapshot_truth.codebase import Codebase, draw_codebase
from benchmarks.snapshot_truth.device import EndPoint, TracedDevice, WindowEnd
from benchmarks.snapshot_truth.program import Program
from benchmarks.snapshot_truth.truth import SnapshotTruth, TrueLifetime, make_entry_times
from benchmarks.snapshot_truth.variants import VARIANTS, ProgramOptions, draw_options
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from zprof.model.tenants import Tenant


def generate(seed: int, variant: str | None = None) -> tuple[dict[str, Any], SnapshotTruth]:
    """Return a snapshot as torch returns it, and its truth; the variant follows from the seed by default."""
    chance = random.Random(seed)
    variant = variant or list(VARIANTS)[seed % len(VARIANTS)]
    options = draw_options(chance, variant)
    code = draw_codebase(chance)
    stacks = chance.choice(("python", "python", "all", "all", "none"))
    has_annotations = chance.random() < 0.6
    end = _draw_end(chance, options)
    device = TracedDevice(
        stacks=stacks,
        annotations=has_annotations,
        expandable=chance.random() < 0.2,
        chance=chance,
        end=end,
    )
    if chance.random() < 0.05:
        device.tag = "experiment 7"
    is_complete = True
    try:
        partner = None
        if variant == "two_models":
            smaller = replace(draw_options(chance, variant), steps=options.steps)
            partner = Program(smaller, code, device, chance)
        Program(options, code, device, chance, partner).run()
    except WindowEnd:
        is_complete = False
    begin, window = _draw_begin(chance, device, options)
    is_ring = begin > 0 and chance.random() < 0.3
    drawn: dict[str, object] = {
        "stacks": stacks,
        "annotations": has_annotations,
        "window": window + ("" if is_complete else f", cut in {end.phase}" if end else ""),
        "ring": is_ring,
        "code": code.style,
        "optimizer": options.optimizer,
        "micro_batches": options.micro_batches,
    }
    snapshot = _cut_snapshot(device, begin, keeps_frames=is_ring)
    return snapshot, _cut_truth(device, begin, seed, options, drawn)


def record_program(options: ProgramOptions, code: Codebase, *, first_step: int, seed: int) -> dict[str, Any]:
    """Return the snapshot of a chosen program, recorded with all stacks from a step to its end."""
    chance = random.Random(seed)
    device = TracedDevice(stacks="all", annotations=False, expandable=False, chance=chance, end=None)
    Program(options, code, device, chance).run()
    begin = min(phase.begin_entry for phase in device.phases if phase.step == first_step)
    return _cut_snapshot(device, begin, keeps_frames=False)


def _draw_end(chance: random.Random, options: ProgramOptions) -> EndPoint | None:
    """Draw where the recording stops; None is the end of the last step."""
    last = options.steps - 1
    if options.mode == "forward_only":
        return EndPoint("forward", last, chance.uniform(0.5, 0.95))
    if chance.random() < 0.5:
        return None
    phases = ("forward",) if options.mode != "train" else ("forward", "backward", "backward", "optimizer")
    return EndPoint(chance.choice(phases), last, chance.uniform(0.05, 0.95))


def _draw_begin(chance: random.Random, device: TracedDevice, options: ProgramOptions) -> tuple[int, str]:
    """Draw the first entry of the window."""
    if options.mode == "forward_only":
        return device.phases[-1].begin_entry, "forward only"
    kind = chance.choice(("start", "start", "step", "step", "entry"))
    if kind == "start":
        return 0, "whole"
    if kind == "step":
        step = chance.randrange(options.steps)
        begins = [each.begin_entry for each in device.phases if each.step == step]
        if begins:
            return min(min(begins), device.entry - 1), f"from step {step}"
    return chance.randrange(device.entry // 2), "from an entry"


def _cut_snapshot(device: TracedDevice, begin: int, *, keeps_frames: bool) -> dict[str, Any]:
    """Return the snapshot without the entries before ``begin``.

    ``keeps_frames``: a ring lost them, so that blocks keep their frames; otherwise nothing was recorded then.
    """
    snapshot = snapshot_of(device.allocator)
    entries = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = entries[begin:]
    if keeps_frames:
        return snapshot
    since_us = entries[begin]["time_us"] if begin else 0
    snapshot["external_annotations"] = [
        each for each in snapshot["external_annotations"] if each["time_us"] >= since_us
    ]
    before = {
        each.address for each in device.lifetimes if each.alloc_entry < begin and each.released_entry is None
    }
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["address"] in before:
                block["frames"] = []
    return snapshot


def _cut_truth(
    device: TracedDevice, begin: int, seed: int, options: ProgramOptions, drawn: dict[str, object]
) -> SnapshotTruth:
    def shift(entry: int | None) -> int | None:
        return None if entry is None else max(entry - begin, -1)

    end = device.entry
    forward = next((p for p in reversed(device.phases) if p.end_entry == end and p.phase == "forward"), None)
    lifetimes = []
    for each in device.lifetimes:
        if each.released_entry is not None and each.released_entry < begin:
            continue
        also = each.also
        if forward is not None and each.released_entry is None and each.alloc_entry >= forward.begin_entry:
            # Whether the rest of the forward would have saved it is open.
            also = (*also, Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS) if each.tenant in _OPEN else also
        alloc_entry = shift(each.alloc_entry)
        assert alloc_entry is not None
        lifetimes.append(
            TrueLifetime(
                each.address,
                each.requested_bytes,
                each.tenant,
                each.sub,
                alloc_entry,
                shift(each.freed_entry),
                shift(each.released_entry),
                also,
                each.born_in,
            )
        )
    live = [device.live_bytes[begin - 1] if begin else 0, *device.live_bytes[begin:]]
    reserved = [device.reserved_bytes[begin - 1] if begin else 0, *device.reserved_bytes[begin:]]
    peak = max(live)
    phases = tuple(
        replace(
            each,
            begin_entry=max(each.begin_entry - begin, 0),
            end_entry=each.end_entry - begin,
            is_cut=each.begin_entry < begin,
        )
        for each in device.phases
        if each.end_entry > begin
    )
    times = make_entry_times(int(each["time_us"]) for each in device.allocator.entries[begin:])
    return SnapshotTruth(
        seed=seed,
        variant=options.variant,
        options=drawn,
        lifetimes=tuple(lifetimes),
        phases=phases,
        entry_ns=tuple(times),
        peak_bytes=peak,
        peak_entry=live.index(peak) - 1,
        reserved_peak_bytes=max(reserved),
        keeps_for_backward=not options.variant.startswith("inference"),
    )


_OPEN = (Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS)
