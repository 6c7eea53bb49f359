"""Read what PyTorch's NCCL watchdog wrote to a log when an operation timed out: for each rank a dump of few
entries, in the format of the flight recorder.

A line names the operation and its number, another one the group and how far it got. Lines of the same rank
and number belong together. The rank in brackets within a line is the rank in the group; the global rank is
before the line ("[rank3]:"). The log is from a stranger: lines, frames and entries are bounded.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from zprof.model.errors import BadInput

MARKER = b"Watchdog caught collective operation timeout: "
_MAX_FILE_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 4096
_MAX_TIMEOUTS = 100_000
_MAX_FRAMES = 500
_MAX_RANK = (1 << 20) - 1
_GLOBAL_RANK = re.compile(rb"\[rank(\d{1,7})\]:")
_TIMEOUT = re.compile(
    rb"\[Rank (?P<rank>\d{1,7})\] Watchdog caught collective operation timeout: "
    rb"WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), OpType=(?P<operation>\w{1,60}), "
    rb"NumelIn=(?P<inputs>\d{1,18}), NumelOut=(?P<outputs>\d{1,18}), Timeout\(ms\)=(?P<timeout>\d{1,18})\)"
)
#: "failure detected by watchdog at work sequence id" since torch 2.6; before, "Exception (either an error or
#: timeout) detected by watchdog at work", and in torch 2.4 a group has one number, which is its name.
_FAILURE = re.compile(
    rb"\[PG (?:ID )?(?P<group_id>\d{1,9})(?: PG GUID (?P<group>[^\s()\]]{1,200}))?"
    rb" ?(?:\((?P<description>[^)]{0,200})\))? Rank (?P<rank>\d{1,7})\]\s{1,4}"
    rb"[^:]{0,100}detected by watchdog at work(?: sequence id)?: (?P<sequence>\d{1,18}),?"
    rb"(?: PG status:)? last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}),"
    rb"(?: last started (?:NCCL )?work: -?\d{1,18},)?"
    rb" last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
_STACK = b"Stack trace of the failed collective:"
_FRAME = re.compile(rb"#\d{1,4} (?P<name>.{1,500}) from (?P<file>.{1,2000}):(?P<line>\d{1,9})\s*")
#: Names of the flight recorder for the watchdog's, where they differ in more than capital letters.
_OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "all_reduce_barrier",
}
_P2P = frozenset({"SEND", "RECV"})

_Key = tuple[int, int]


def has_watchdog_lines(file: BinaryIO) -> bool:
    """Return True if the file has a line of the watchdog on a timeout, as far as it may be read."""
    tail = b""
    for _ in range(_MAX_FILE_BYTES // _CHUNK_BYTES):
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            return False
        if MARKER in tail + chunk:
            return True
        tail = chunk[-len(MARKER) :]
    return False


def read_watchdog_log(file: BinaryIO) -> dict[int, dict[str, Any]]:
    """Return a dump for each rank whose watchdog named a group and an operation.

    Raises:
        BadInput: it has no such lines, or too many.
    """
    timeouts: dict[_Key, re.Match[bytes]] = {}
    failures: dict[_Key, list[re.Match[bytes]]] = {}
    stacks: dict[int, list[dict[str, Any]]] = {}
    frames: list[dict[str, Any]] | None = None
    for line in _iterate_lines(file):
        if frames is not None and (match := _FRAME.fullmatch(line)) and len(frames) < _MAX_FRAMES:
            frames.append(_make_frame(match))
            continue
        frames = None
        if _STACK in line and (prefix := _GLOBAL_RANK.search(line)):
            # The watchdog of a rank stops at its first failure: there is one stack.
            frames = stacks.setdefault(int(prefix[1]), [])
        elif match := _TIMEOUT.search(line):
            timeouts.setdefault((_read_rank(line, match), int(match["sequence"])), match)
        elif match := _FAILURE.search(line):
            failures.setdefault((_read_rank(line, match), int(match["sequence"])), []).append(match)
        if len(timeouts) + len(failures) + len(stacks) > _MAX_TIMEOUTS:
            raise BadInput(f"more than {_MAX_TIMEOUTS} lines of the watchdog", hint="pass the log of one job")
    dumps: dict[int, dict[str, Any]] = {}
    for key, timeout in timeouts.items():
        # Two groups of a rank may time out at the same number; the timeout does not say in which it was.
        for failure in failures.get(key, [])[:1]:
            dump = dumps.setdefault(key[0], _make_dump())
            _add_entry(dump, timeout, failure, stacks.pop(key[0], []))
    if not dumps:
        raise BadInput(
            "no line of the NCCL watchdog names both a group and the operation that timed out in it",
            hint="pass the flight-recorder dumps, or the log of torch 2.5 or later",
        )
    return dumps


def _iterate_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines, up to a length."""
    is_continued = False
    for _ in range(_MAX_FILE_BYTES // 2):
        line = file.readline(_MAX_LINE_BYTES)
        if not line:
            return
        if not is_continued:
            yield line
        is_continued = not line.endswith(b"\n")


def _read_rank(line: bytes, match: re.Match[bytes]) -> int:
    """Return the global rank; without the prefix of torch it is that within the group."""
    prefix = _GLOBAL_RANK.search(line, 0, match.start())
    return min(int(prefix[1] if prefix else match["rank"]), _MAX_RANK)


def _make_dump() -> dict[str, Any]:
    return {"version": "2.0", "pg_config": {}, "pg_status": {}, "entries": []}


def _make_frame(match: re.Match[bytes]) -> dict[str, Any]:
    name, file = (match[key].decode("utf-8", "replace") for key in ("name", "file"))
    return {"name": name, "filename": file, "line": int(match["line"])}


def _add_entry(
    dump: dict[str, Any],
    timeout: re.Match[bytes],
    failure: re.Match[bytes],
    frames: list[dict[str, Any]],
) -> None:
    name, sequence = timeout["operation"].decode("ascii", "replace"), int(timeout["sequence"])
    dump["pg_status"][failure["group_id"].decode()] = {
        "last_enqueued_collective": int(failure["enqueued"]),
        "last_completed_collective": int(failure["completed"]),
    }
    dump["entries"].append(
        {
            "record_id": len(dump["entries"]),
            "pg_id": int(failure["group_id"]),
            "process_group": [
                (failure["group"] or failure["group_id"]).decode("utf-8", "replace"),
                (failure["description"] or b"").decode("utf-8", "replace"),
            ],
            "profiling_name": f"nccl:{_OPERATIONS.get(name, name.lower())}",
            "collective_seq_id": sequence,
            "p2p_seq_id": sequence if name in _P2P else 0,
            "is_p2p": name in _P2P,
            "op_id": sequence,
            "input_sizes": [[int(timeout["inputs"])]],
            "output_sizes": [[int(timeout["outputs"])]],
            "state": "scheduled",
            "timeout_ms": int(timeout["timeout"]),
            "frames": frames,
        }
    )
