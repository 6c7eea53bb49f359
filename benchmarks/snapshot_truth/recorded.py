"""Export a recorded run as a CUDA memory snapshot: the recording's tagged owners are the truth."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.truth import SnapshotTruth, TrueLifetime, TruePhase, make_entry_times
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.memory.live_bytes import RankLives, list_devices, read_rank_lives
from zprof.analysis.memory.tables import FOREVER, UNTAGGED, Timeline, read_checked_table, read_timeline
from zprof.base.errors import BadInput
from zprof.model.tenants import PRECEDENCE, Tenant
from zprof.model.training import Phase
from zprof.run.reader import Run

_OPTIMIZER = "Optimizer.step#Optimizer.step"


def export_run(path: Path, rank: int = 0) -> tuple[dict[str, Any], SnapshotTruth]:
    """Return the memory window of one rank as a snapshot of device 0, and its truth.

    Blocks are placed by the simulated allocator, as the addresses of the host's are not in segments; those
    from before the window have no frames, as if recording began with it. A block whose owner changes may
    have each of its owners; of a block that the recording left untagged nothing is known.

    Raises:
        BadInput: the run has no memory window.
    """
    run = Run(path)
    timeline = read_timeline(read_checked_table(run, rank, "mark"))
    if timeline is None:
        raise BadInput(f"{path}: rank {rank} has no memory window", hint="record the run with its memory")
    alloc = read_checked_table(run, rank, "alloc")
    device = list_devices(alloc)[0]
    lives = read_rank_lives(alloc, read_checked_table(run, rank, "role"), timeline, device)
    frames = _read_stacks(read_checked_table(run, rank, "stack")) if run.has_table(rank, "stack") else {}
    replay = _Replay(lives, timeline, _find_stacks(lives, alloc, device), frames)
    replay.run()
    return snapshot_of(replay.allocator), replay.truth(path.name)


class _Replay:
    """Play the blocks of a recording through the simulated allocator, in the order of their times."""

    def __init__(
        self,
        lives: RankLives,
        timeline: Timeline,
        stacks: dict[int, int],
        frames: dict[int, list[dict[str, Any]]],
    ) -> None:
        self.allocator = Allocator(keep_states=False)
        self._timeline, self._stacks, self._frames = timeline, stacks, frames
        self._blocks = lives.blocks
        self._owners = _list_owners(lives)
        self._lifetimes: dict[int, TrueLifetime] = {}
        self._live: list[int] = []
        self._reserved: list[int] = []
        self._phases: list[TruePhase] = []

    def run(self) -> None:
        begin_ns, end_ns = self._timeline.begin_ns, self._timeline.end_ns
        live, is_recording = 0, False
        self.allocator.now_us = begin_ns // 1000 - 1
        for time_ns, kind, block in self._list_events():
            if time_ns > end_ns:
                break
            if time_ns > begin_ns and not is_recording:
                self.allocator.begin_history()
                self._live, self._reserved, is_recording = [live], [self.allocator.reserved_bytes], True
            self.allocator.now_us = max(self.allocator.now_us, time_ns // 1000)
            if kind == "phase":
                self._begin_phase(block)
                continue
            size = int(self._blocks.bytes[block])
            entries = len(self.allocator.entries)
            if kind == "alloc":
                self._alloc(block, size, is_recording)
                live += size
            else:
                lifetime = self._lifetimes[block]
                lifetime.freed_entry, lifetime.released_entry = entries, entries + 1
                if not is_recording:
                    lifetime.freed_entry = lifetime.released_entry = -1
                self.allocator.free(lifetime.address)
                live -= size
            for entry in self.allocator.entries[entries:]:
                changes = entry["action"] in ("alloc", "free_requested")
                self._live.append(live if changes else self._live[-1])
                self._reserved.append(self.allocator.reserved_bytes)
        self._begin_phase(-1)

    def _alloc(self, block: int, size: int, is_recording: bool) -> None:
        frames = self._frames.get(self._stacks.get(block, -1), []) if is_recording else []
        address = self.allocator.alloc(size, frames=frames)
        entry = len(self.allocator.entries) - 1 if is_recording else -1
        tenant, also, sub = self._owners.get(block, (Tenant.TEMPORARY_BUFFERS, tuple(Tenant), "unknown"))
        self._lifetimes[block] = TrueLifetime(address, size, tenant, sub, entry, also=also)

    def _begin_phase(self, number: int) -> None:
        """End the phase that runs, and begin the next one; -1 for none."""
        entry = len(self.allocator.entries)
        if self._phases:
            last = self._phases[-1]
            self._phases[-1] = TruePhase(
                phase=last.phase,
                step=last.step,
                micro_batch=-1,
                begin_entry=last.begin_entry,
                end_entry=entry,
            )
            if last.phase == Phase.OPTIMIZER:
                self.allocator.annotate(_OPTIMIZER, "END")
        if number >= 0:
            time_ns, name = self._timeline.phases[number]
            step = self._timeline.step_at(time_ns)
            self._phases.append(
                TruePhase(phase=name, step=step, micro_batch=-1, begin_entry=entry, end_entry=entry)
            )
            if name == Phase.OPTIMIZER:
                self.allocator.annotate(_OPTIMIZER, "START")

    def _list_events(self) -> list[tuple[int, str, int]]:
        """Return (time, kind, block or number of the phase); frees come first at the same time."""
        blocks = self._blocks
        events = [(time_ns, 1, "phase", n) for n, (time_ns, _) in enumerate(self._timeline.phases)]
        for block in np.flatnonzero((blocks.bytes > 0) & (blocks.end_ns > blocks.begin_ns)).tolist():
            events.append((max(int(blocks.begin_ns[block]), 0), 2, "alloc", block))
            if blocks.end_ns[block] != FOREVER:
                events.append((int(blocks.end_ns[block]), 0, "free", block))
        return [(time_ns, kind, number) for time_ns, _, kind, number in sorted(events)]

    def truth(self, name: str) -> SnapshotTruth:
        lifetimes = [each for each in self._lifetimes.values() if each.released_entry != -1]
        peak = max(self._live)
        return SnapshotTruth(
            seed=-1,
            variant=name,
            options={"window": "recorded"},
            lifetimes=tuple(lifetimes),
            phases=tuple(self._phases),
            entry_ns=tuple(make_entry_times(int(each["time_us"]) for each in self.allocator.entries)),
            peak_bytes=peak,
            peak_entry=self._live.index(peak) - 1,
            reserved_peak_bytes=max(self._reserved),
        )


def _list_owners(lives: RankLives) -> dict[int, tuple[Tenant, tuple[Tenant, ...], str]]:
    """Return the strongest owner of each block, its other owners, and the sub of the strongest."""
    owners: dict[int, tuple[Tenant, tuple[Tenant, ...], str]] = {}
    segments = lives.segments
    order = np.argsort(segments.tenant, kind="stable")
    for row in order[segments.tenant[order] != UNTAGGED].tolist():
        block, tenant = int(segments.block[row]), PRECEDENCE[int(segments.tenant[row])]
        if block in owners:
            first, also, sub = owners[block]
            owners[block] = (first, (*also, tenant), sub)
        else:
            owners[block] = (tenant, (), str(segments.sub[row]))
    return owners


def _find_stacks(lives: RankLives, alloc: Columns, device: str) -> dict[int, int]:
    """Return the stack of each block: that of its first storage that has one."""
    rows = alloc.at(alloc.texts("device").equals(device) & alloc.texts("source").equals("storage"))
    by_generation = dict(zip(rows["generation"].tolist(), rows["stack"].tolist(), strict=True))
    found: dict[int, int] = {}
    for generation, block in zip(
        lives.storages.generation.tolist(), lives.blocks.owner.tolist(), strict=True
    ):
        stack = by_generation.get(generation)
        if stack is not None:
            found.setdefault(block, stack)
    return found


def _read_stacks(stack: Columns) -> dict[int, list[dict[str, Any]]]:
    """Return the frames of each stack, innermost first."""
    stack = stack.sort_by("stack", "depth")
    frames: dict[int, list[dict[str, Any]]] = {}
    for places in Groups(stack.ints("stack")).split():
        rows = stack.at(places)
        columns = (rows[name].tolist() for name in ("file", "line", "function"))
        frames[int(rows.ints("stack")[0])] = [
            {"filename": file, "line": line, "name": name} for file, line, name in zip(*columns, strict=True)
        ]
    return frames
