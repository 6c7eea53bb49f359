"""An allocator's history replayed the plain way: one dict of what is in use, walked back and then forward.

It shares nothing with the importer: block sizes come from a search over all blocks and segments in use.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

UNIT, MIB = 512, 1 << 20
_NEVER_SPLIT = 1 << 62


@dataclass(frozen=True)
class Moment:
    """Bytes after one entry. ``rounded`` is None if a large block in use is from before the history."""

    time_ns: int
    requested: int
    rounded: int | None
    awaiting: int
    reserved: int


@dataclass
class _Use:
    """A block in use: ``size`` is None if the file does not have it."""

    requested: int
    size: int | None
    awaiting: bool = False


def replay_plainly(
    entries: list[dict[str, Any]], segments: list[dict[str, Any]], max_split: int = _NEVER_SPLIT
) -> list[Moment]:
    """Return the state before the first entry, and after each one."""
    used, held = _state_at_end(segments)
    for entry in reversed(entries):
        _undo(entry, used, held)
    time_ns = entries[0]["time_us"] * 1000 - 1
    moments = [_sum_up(time_ns, used, held)]
    for entry in entries:
        time_ns = max(entry["time_us"] * 1000, time_ns + 1)
        _redo(entry, used, held, max_split)
        moments.append(_sum_up(time_ns, used, held))
    end_used, _ = _state_at_end(segments)
    assert {at: use.requested for at, use in used.items()} == {
        at: use.requested for at, use in end_used.items()
    }
    return moments


def _state_at_end(segments: list[dict[str, Any]]) -> tuple[dict[int, _Use], list[tuple[int, int, bool]]]:
    used: dict[int, _Use] = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                used[block["address"]] = _Use(
                    block["requested_size"], block["size"], block["state"] != "active_allocated"
                )
    held = [(s["address"], s["total_size"], bool(s.get("is_expandable"))) for s in segments]
    return used, held


def _undo(entry: Mapping[str, Any], used: dict[int, _Use], held: list[tuple[int, int, bool]]) -> None:
    action, at, size = entry["action"], entry.get("addr", 0), entry.get("size", 0)
    if action == "free_completed":
        used[at] = _Use(size, None, awaiting=True)
    elif action == "free_requested":
        used[at].awaiting = False
    elif action == "alloc":
        del used[at]
    elif action in ("segment_free", "segment_unmap"):
        held.append((at, size, action == "segment_unmap"))
    elif action in ("segment_alloc", "segment_map"):
        _cut(held, at, size)


def _redo(
    entry: Mapping[str, Any], used: dict[int, _Use], held: list[tuple[int, int, bool]], max_split: int
) -> None:
    action, at, size = entry["action"], entry.get("addr", 0), entry.get("size", 0)
    if action == "alloc":
        used[at] = _Use(size, _find_size(at, size, used, held, max_split))
    elif action == "free_requested":
        used[at].awaiting = True
    elif action == "free_completed":
        del used[at]
    elif action in ("segment_free", "segment_unmap"):
        _cut(held, at, size)
    elif action in ("segment_alloc", "segment_map"):
        held.append((at, size, action == "segment_map"))


def _cut(held: list[tuple[int, int, bool]], at: int, size: int) -> None:
    """Remove the bytes [at, at + size) from what is held."""
    for piece in [p for p in held if p[0] < at + size and p[0] + p[1] > at]:
        held.remove(piece)
        start, end = piece[0], piece[0] + piece[1]
        held += [(start, at - start, piece[2])] if start < at else []
        held += [(at + size, end - at - size, piece[2])] if end > at + size else []


def _find_size(
    at: int, size: int, used: Mapping[int, _Use], held: list[tuple[int, int, bool]], max_split: int
) -> int:
    rounded = max(UNIT, -(-size // UNIT) * UNIT)
    _, end, expandable = next((p[0], p[0] + p[1], p[2]) for p in held if p[0] <= at < p[0] + p[1])
    if rounded <= MIB or expandable:
        return rounded
    free = min([end, *(other for other in used if other > at)]) - at
    return free if free - rounded <= MIB or rounded >= max_split else rounded


def _sum_up(time_ns: int, used: Mapping[int, _Use], held: list[tuple[int, int, bool]]) -> Moment:
    live = [use for use in used.values() if not use.awaiting]
    sizes = list(_sizes(live))
    return Moment(
        time_ns=time_ns,
        requested=sum(use.requested for use in live),
        rounded=None if None in sizes else sum(size or 0 for size in sizes),
        awaiting=sum(use.awaiting for use in used.values()),
        reserved=sum(size for _, size, _ in held),
    )


def _sizes(uses: list[_Use]) -> Iterator[int | None]:
    for use in uses:
        rounded = max(UNIT, -(-use.requested // UNIT) * UNIT)
        yield rounded if use.size is None and rounded <= MIB else use.size
