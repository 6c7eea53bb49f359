"""Turn NCCL's NVTX ranges into descriptions of collectives, as a Kineto trace has them.

NCCL marks its calls ("ncclAllReduce") in an NVTX domain, with payloads since 2.14: communicator, bytes, peer.
Inside ncclGroupStart and ncclGroupEnd nothing is launched before the end of the outermost group:

    one call                        a collective, launched by the end of the group
    sends and receives alike, to    an all_to_all, which NCCL has no call for (as torch's all_to_all_single)
      and from every rank
    other sends and receives        a batch of messages
    several calls of one kind       one collective of their bytes

Payloads are exported as JSON (``nsys export --include-json true``); without them, sizes, communicators and
peers are unknown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

#: Names as torch's profiler writes them, by NCCL's call.
CALLS: Mapping[str, str] = {
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "allgather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "alltoall",
    "ncclAllToAll": "alltoall",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
INITIALIZERS = frozenset({"ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommSplit", "ncclCommInitAll"})
GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"
KNOWN = frozenset(CALLS) | INITIALIZERS | {GROUP_START, GROUP_END}
#: What zprof takes the bytes of a message as: elements of one byte, of unknown type.
BYTES_DTYPE = "bytes of unknown type"
_MESSAGES = ("send", "recv")
_MAX_PAYLOAD, _MAX_RANKS = 10_000, 1 << 17


class Range(Struct, frozen=True, kw_only=True):
    """One NVTX range of NCCL; ``payload``: its JSON, or "" if it was not exported."""

    name: str
    start_ns: int
    end_ns: int
    payload: str = ""


class Payload(Struct, frozen=True, kw_only=True):
    """What a payload says; None if unknown."""

    communicator: str | None = None
    bytes: int | None = None
    ranks: int | None = None
    rank: int | None = None
    peer: int | None = None


class Call(Struct, frozen=True, kw_only=True):
    """A collective or message: from its call to the end of its group.

    ``collective``: its name as in a Kineto trace. ``in_batch``: one of several messages of a group, which the
    end of the group launches together. ``is_per_peer``: the bytes are those for one peer (ncclAlltoAll).
    """

    collective: str
    start_ns: int
    end_ns: int
    payload: Payload
    in_batch: bool = False
    is_per_peer: bool = False


class Batch(Struct, frozen=True, kw_only=True):
    """The end of a group of messages, which launches their kernel."""

    start_ns: int
    end_ns: int


def find_calls(
    ranges: Sequence[Range], find_size: Callable[[str | None], int | None]
) -> tuple[list[Call], list[Batch]]:
    """Return the collectives and batches of messages of one thread.

    Args:
        ranges: NCCL's ranges of the thread.
        find_size: Returns the ranks of a communicator, whose id is None without payloads; None if unknown.
    """
    calls: list[Call] = []
    batches: list[Batch] = []
    waiting: list[Range] = []
    depth = 0
    for each in sorted(ranges, key=lambda found: (found.start_ns, -found.end_ns)):
        if each.name == GROUP_START:
            depth += 1
        elif each.name == GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0 and waiting:
                found, is_batch = _close_group(waiting, each.end_ns, find_size)
                calls += found
                batches += [Batch(start_ns=each.start_ns, end_ns=each.end_ns)] if is_batch else []
                waiting = []
        elif each.name in CALLS and depth:
            waiting.append(each)
        elif each.name in CALLS:
            calls.append(_make_call(each, each.end_ns))
    return calls, batches


def _close_group(
    group: Sequence[Range], end_ns: int, find_size: Callable[[str | None], int | None]
) -> tuple[list[Call], bool]:
    """Return the collectives of a group, and whether they are a batch of messages."""
    kinds = [CALLS[each.name] for each in group]
    if len(group) == 1:
        return [_make_call(group[0], end_ns)], False
    if set(kinds) <= set(_MESSAGES):
        if _is_all_to_all(group, kinds, find_size):
            sent = [each for each, kind in zip(group, kinds, strict=True) if kind == "send"]
            return [_join(sent, "alltoall", end_ns)], False
        return [_make_call(each, each.end_ns, in_batch=True) for each in group], True
    if len(set(kinds)) == 1:
        return [_join(group, kinds[0], end_ns)], False
    return [], False


def _is_all_to_all(
    group: Sequence[Range], kinds: Sequence[str], find_size: Callable[[str | None], int | None]
) -> bool:
    """Return True if every rank of the communicator is sent to and received from once."""
    payloads = [read_payload(each.payload) for each in group]
    communicators = {payload.communicator for payload in payloads}
    ranks = find_size(communicators.pop()) if len(communicators) == 1 else None
    sends = kinds.count("send")
    if ranks is None or sends != ranks or len(kinds) != 2 * sends:
        return False
    peers = [payload.peer for payload in payloads]
    return None in peers or sorted(peer or 0 for peer in peers) == sorted([*range(ranks)] * 2)


def _make_call(each: Range, end_ns: int, *, in_batch: bool = False) -> Call:
    return Call(
        collective=CALLS[each.name],
        start_ns=each.start_ns,
        end_ns=end_ns,
        payload=read_payload(each.payload),
        in_batch=in_batch,
        is_per_peer=CALLS[each.name] == "alltoall",
    )


def _join(group: Sequence[Range], collective: str, end_ns: int) -> Call:
    """Return one collective with the bytes of all."""
    payloads = [read_payload(each.payload) for each in group]
    sizes = [payload.bytes for payload in payloads]
    communicators = {payload.communicator for payload in payloads}
    return Call(
        collective=collective,
        start_ns=group[0].start_ns,
        end_ns=end_ns,
        payload=Payload(
            communicator=communicators.pop() if len(communicators) == 1 else None,
            bytes=None if None in sizes else sum(size or 0 for size in sizes),
        ),
    )


def read_payload(text: str) -> Payload:
    """Return what the JSON of a payload says; unknown keys and damaged JSON say nothing."""
    if not text or len(text) > _MAX_PAYLOAD:
        return Payload()
    try:
        found = _flatten(json.loads(text))
    except (ValueError, RecursionError):
        return Payload()
    communicator = found.get("nccl communicator id")
    return Payload(
        communicator=None if communicator is None else str(communicator)[:40],
        bytes=_as_count(found.get("message size [bytes]")),
        ranks=_as_count(found.get("no. of ranks"), _MAX_RANKS),
        rank=_as_count(found.get("rank"), _MAX_RANKS),
        peer=_as_count(found.get("peer rank", found.get("root")), _MAX_RANKS),
    )


def _flatten(tree: Any) -> dict[str, Any]:
    """Return the values of a payload by lower-case name, from any depth."""
    values: dict[str, Any] = {}
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in entries:
        if isinstance(value, dict | list):
            values |= _flatten(value)
        elif isinstance(name, str):
            values[name.strip().lower()] = value
    return values


def _as_count(value: object, most: int = 1 << 50) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
