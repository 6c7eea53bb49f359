"""Compare what the product says about a snapshot with its truth, per block."""

import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.snapshot_truth.generator import generate
from benchmarks.snapshot_truth.phases import PhaseComparison, compare_phases
from benchmarks.snapshot_truth.truth import SnapshotTruth, TrueLifetime
from benchmarks.snapshot_truth.write_snapshot import write_snapshot
from zprof.analysis.columns import Columns
from zprof.analysis.memory.attribution.block_tenants import get_tenant_name
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import find_reserved_peak, list_history_devices, read_history
from zprof.analysis.memory.snapshot import read_snapshot_device
from zprof.analysis.memory.tables import Timeline
from zprof.collectors.read.snapshot.reader import read_snapshot
from zprof.model.memory import HistoryWindow

#: How sure a name is: the codes of the product's confidence, 0 to 3.
LEVELS = ("sure", "likely", "guess", "untagged")
_WRONG_BLOCKS = 8
#: Bytes that are not sure, as a share of a tenant, that may belong to it without its sum being wrong.
_OPEN_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidBlock:
    """What the product says about one block lifetime."""

    address: int
    requested_bytes: int
    begin_ns: int
    end_ns: int
    tenant: str
    level: str
    reason: str
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidSnapshot:
    """What the product says about the largest device of a snapshot."""

    blocks: list[SaidBlock]
    peak_bytes: int
    reserved_bytes: int
    timeline: Timeline
    window: HistoryWindow


@dataclass(slots=True, kw_only=True)
class MomentComparison:
    """Bytes in use at one moment; ``wrong_bytes`` by level; tenants as (true, said) bytes.

    What the truth leaves open counts as what the product says.
    """

    bytes_by_level: dict[str, int]
    wrong_bytes: dict[str, int]
    tenants: dict[str, tuple[int, int]]
    #: Tenants of which each byte is sure, and that hardly any byte of another level could belong to.
    sure_tenants: list[str]
    wrong_blocks: list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class SnapshotComparison:
    """The comparison of one snapshot; ``peak`` and ``reserved`` as (true, said) bytes."""

    seed: int
    variant: str
    options: dict[str, object]
    peak: tuple[int, int]
    reserved: tuple[int, int]
    #: Lifetimes of the truth without a counterpart, and the other way round.
    unmatched: int
    at_peak: MomentComparison
    at_end: MomentComparison
    phases: PhaseComparison | None = None
    error: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)


def compare_seed(task: tuple[int, str | None]) -> SnapshotComparison:
    """Compare one generated snapshot; an error of the product is part of the result."""
    seed, variant = task
    snapshot, truth = generate(seed, variant)
    try:
        return compare_snapshot(snapshot, truth)
    except Exception:
        nothing = MomentComparison(
            bytes_by_level={}, wrong_bytes={}, tenants={}, sure_tenants=[], wrong_blocks=[]
        )
        return SnapshotComparison(
            seed=seed, variant=truth.variant, options=truth.options, peak=(truth.peak_bytes, 0),
            reserved=(truth.reserved_peak_bytes, 0), unmatched=0, at_peak=nothing, at_end=nothing,
            error=traceback.format_exc(limit=-3),
        )  # fmt: skip


def read_said(tables: Mapping[str, pa.Table]) -> SaidSnapshot:
    """Return what the product says about the tables of an imported snapshot."""
    columns = {name: Columns.from_arrow(table) for name, table in tables.items()}
    history = read_history(columns["block"], columns["segment"], list_history_devices(columns["block"])[0])
    assert history is not None
    stacks = StackIndex(columns["stack"])
    device = read_snapshot_device(0, history, stacks, columns["mark"])
    blocks = history.blocks
    levels = [LEVELS[code] for code in device.names.confidence.tolist()]
    formatted = {number: tuple(stacks.format_stack(number)) for number in set(blocks.stack.tolist())}
    said = [
        SaidBlock(
            address=int(blocks.address[row]),
            requested_bytes=int(blocks.requested_bytes[row]),
            begin_ns=int(blocks.begin_ns[row]),
            end_ns=int(blocks.freed_ns[row]),
            tenant=get_tenant_name(device.names.get(row)),
            reason=device.names.get(row).reason,
            level=levels[row],
            stack=formatted[int(blocks.stack[row])],
        )
        for row in range(len(blocks))
    ]
    at_ns = find_reserved_peak(history, history.begin_ns, history.end_ns)
    held = history.held_segments
    reserved = 0 if at_ns is None else int(held.bytes[(held.begin_ns <= at_ns) & (held.end_ns > at_ns)].sum())
    return SaidSnapshot(
        blocks=said,
        peak_bytes=device.peak_bytes,
        reserved_bytes=reserved,
        timeline=device.lives.timeline,
        window=device.window,
    )


def compare_snapshot(snapshot: Mapping[str, Any], truth: SnapshotTruth) -> SnapshotComparison:
    """Read a snapshot through the product, and compare each block."""
    with tempfile.TemporaryDirectory(prefix="zprof-truth-") as folder:
        path = write_snapshot(Path(folder) / "snapshot.pickle", snapshot)
        with read_snapshot(path) as contents:
            said = read_said(contents.tables)
    pairs, unmatched = match_blocks(truth.lifetimes, said.blocks)
    last = len(truth.entry_ns) - 1
    at_peak = _compare_moment([pair for pair in pairs if _is_live(pair[0], truth.peak_entry)])
    return SnapshotComparison(
        seed=truth.seed,
        variant=truth.variant,
        options=truth.options,
        peak=(truth.peak_bytes, said.peak_bytes),
        reserved=(truth.reserved_peak_bytes, said.reserved_bytes),
        unmatched=unmatched,
        at_peak=at_peak,
        at_end=_compare_moment([pair for pair in pairs if _is_live(pair[0], last)]),
        phases=compare_phases(truth, said.timeline, said.window),
        groups=_group([pair for pair in pairs if _is_live(pair[0], truth.peak_entry)]),
    )


def match_blocks(
    lifetimes: Sequence[TrueLifetime], said: Sequence[SaidBlock]
) -> tuple[list[tuple[TrueLifetime, SaidBlock]], int]:
    """Return pairs, and the number of blocks without one: the n-th at an address is the n-th there."""
    by_address: dict[int, tuple[list[TrueLifetime], list[SaidBlock]]] = defaultdict(lambda: ([], []))
    for lifetime in lifetimes:
        by_address[lifetime.address][0].append(lifetime)
    for block in sorted(said, key=lambda each: each.begin_ns):
        by_address[block.address][1].append(block)
    pairs, unmatched = [], 0
    for true, other in by_address.values():
        same = list(zip(true, other, strict=False))
        pairs += [pair for pair in same if pair[0].requested_bytes == pair[1].requested_bytes]
        unmatched += len(true) + len(other) - 2 * len(same)
        unmatched += sum(pair[0].requested_bytes != pair[1].requested_bytes for pair in same)
    return pairs, unmatched


def _is_live(lifetime: TrueLifetime, entry: int) -> bool:
    return lifetime.alloc_entry <= entry and (lifetime.freed_entry is None or lifetime.freed_entry > entry)


def _compare_moment(pairs: Sequence[tuple[TrueLifetime, SaidBlock]]) -> MomentComparison:
    by_level, wrong_by_level = Counter(dict.fromkeys(LEVELS, 0)), Counter(dict.fromkeys(LEVELS, 0))
    true_bytes: Counter[str] = Counter()
    said_bytes: Counter[str] = Counter()
    unsure: set[str] = set()
    wrong = []
    for true, said in pairs:
        size = true.requested_bytes
        is_right = true.accepts(said.tenant)
        by_level[said.level] += size
        true_bytes[said.tenant if is_right else true.tenant.value] += size
        said_bytes[said.tenant] += size
        if said.level != "sure":
            unsure.add(said.tenant)
        if not is_right and said.level != "untagged":
            wrong_by_level[said.level] += size
            wrong.append((LEVELS.index(said.level), -size, true, said))
    unsure_bytes = sum(by_level.values()) - by_level["sure"]
    wrong.sort(key=lambda each: each[:2])
    return MomentComparison(
        bytes_by_level=dict(by_level),
        wrong_bytes=dict(wrong_by_level),
        tenants={name: (true_bytes[name], said_bytes[name]) for name in sorted(true_bytes | said_bytes)},
        sure_tenants=sorted(
            name
            for name, size in said_bytes.items()
            if name not in unsure and unsure_bytes <= _OPEN_RATIO * size
        ),
        wrong_blocks=[_describe(true, said) for _, _, true, said in wrong[:_WRONG_BLOCKS]],
    )


def _describe(true: TrueLifetime, said: SaidBlock) -> dict[str, Any]:
    return {
        "bytes": true.requested_bytes,
        "true": f"{true.tenant.value}:{true.sub}",
        "said": said.tenant,
        "level": said.level,
        "reason": said.reason,
        "born_in": true.born_in,
        "alloc_entry": true.alloc_entry,
        "stack": list(said.stack[:8]),
    }


def _group(pairs: Sequence[tuple[TrueLifetime, SaidBlock]]) -> list[dict[str, Any]]:
    """Return the bytes at the peak by true and said owner, largest first."""
    groups: dict[tuple[str, str, str, str], list[tuple[TrueLifetime, SaidBlock]]] = defaultdict(list)
    for true, said in pairs:
        key = (
            f"{true.tenant.value}:{true.sub}",
            said.tenant,
            f"{said.level} {said.reason}",
            "right" if true.accepts(said.tenant) else "WRONG",
        )
        groups[key].append((true, said))
    found = []
    for key, members in groups.items():
        largest = max(members, key=lambda pair: pair[0].requested_bytes)
        found.append(
            {
                "bytes": sum(true.requested_bytes for true, _ in members),
                "blocks": len(members),
                "before": sum(true.alloc_entry < 0 for true, _ in members),
                "judged": key[3] if key[1] != "untagged" else "-",
                **_describe(*largest),
                "largest": largest[0].requested_bytes,
            }
        )
        found[-1]["bytes"] = sum(true.requested_bytes for true, _ in members)
    return sorted(found, key=lambda each: -int(each["bytes"]))


def to_json(comparison: SnapshotComparison) -> dict[str, Any]:
    """Return one comparison as plain data, without its groups."""
    plain = asdict(comparison) | {"groups": []}
    if comparison.phases is not None:
        entries = comparison.phases.entries.items()
        plain["phases"]["entries"] = {f"{true} read as {said}": count for (true, said), count in entries}
    return plain
