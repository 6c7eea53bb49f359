"""Short programs of device ranks, played in true time and written as the run that an import would write.

Each rank has a host that launches and one stream for compute, one for each group of collectives.  A
collective starts on a rank when it is launched there, its stream is free and the compute before it is done,
and ends everywhere one transfer after its last start.  Shares no code with the analysis.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter

BASE_NS = 1_790_857_026_000_000_000
US, MS = 1_000, 1_000_000
HOST, COMPUTE, FIRST_COMM = 1, 7, 20
_CALL_NS, _START_NS = 5 * US, 3 * US


class Kernel(Struct, frozen=True, kw_only=True):
    """A kernel of compute."""

    ns: int


class Host(Struct, frozen=True, kw_only=True):
    """The host is busy with a call, or, without a name, with nothing that a trace shows."""

    ns: int
    name: str = ""
    category: str = "cuda_runtime"


class Copy(Struct, frozen=True, kw_only=True):
    """A copy on the stream of the compute."""

    ns: int


class Collect(Struct, frozen=True, kw_only=True):
    """A collective of a group; ``after_compute``: it waits for the compute launched before it.

    ``lane``: the stream that it shares with others of that name, else its group has one of its own.
    """

    key: str
    group: tuple[int, ...]
    ns: int = 2 * MS
    kind: str = "all_gather"
    bytes: int = 1 << 20
    after_compute: bool = True
    lane: str = ""

    @property
    def stream(self) -> str:
        """What it queues on."""
        return self.lane or str(self.group)


class Join(Struct, frozen=True, kw_only=True):
    """Compute that is launched from here on waits for a collective."""

    key: str


class Drain(Struct, frozen=True, kw_only=True):
    """The host waits for the stream of the compute."""

    name: str = "cudaStreamSynchronize"


class Step(Struct, frozen=True, kw_only=True):
    """The program begins a step here; where no rank has any, the window is cut into equal ones."""


Op = Kernel | Host | Copy | Collect | Join | Drain | Step


class Rank(Struct):
    """Where a rank stands, and what it did; spans are (start, end, category, name, stream, correlation)."""

    program: Sequence[Op]
    host: int = 0
    compute: int = 0
    at: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[int, int, str, str, int | None, int]] = field(default_factory=list)
    starts: dict[str, tuple[int, int]] = field(default_factory=dict)
    begins: list[int] = field(default_factory=list)


def play(programs: Mapping[int, Sequence[Op]]) -> dict[int, Rank]:
    """Play the programs of all ranks to their ends."""
    ranks = {rank: Rank(program) for rank, program in programs.items()}
    members = {op.key: op for program in programs.values() for op in program if isinstance(op, Collect)}
    ends: dict[str, int] = {}
    while any(rank.at < len(rank.program) for rank in ranks.values()):
        moved = [_advance(rank, members, ends) for rank in ranks.values()]
        for key, op in members.items():
            if key not in ends and all(key in ranks[member].starts for member in op.group):
                ends[key] = max(ranks[member].starts[key][1] for member in op.group) + op.ns
                moved.append(True)
                for member in op.group:
                    ranks[member].streams[op.stream] = ends[key]
        assert any(moved), "deadlock in the programs"
    return ranks


def _advance(rank: Rank, members: Mapping[str, Collect], ends: Mapping[str, int]) -> bool:
    begin = rank.at
    while rank.at < len(rank.program):
        op = rank.program[rank.at]
        if isinstance(op, Join):
            if op.key not in ends:
                break
            rank.compute = max(rank.compute, ends[op.key])
        elif isinstance(op, Collect):
            queued = [key for key in rank.starts if members[key].stream == op.stream]
            if any(key not in ends for key in queued):
                break
            launch, number = _call(rank, "cudaLaunchKernelExC")
            ready = [launch + _START_NS, rank.streams.get(op.stream, 0)]
            rank.starts[op.key] = (launch, max([*ready, rank.compute] if op.after_compute else ready))
            rank.spans.append((number, 0, "collective", op.key, None, number))
        elif isinstance(op, Step):
            rank.begins.append(rank.host)
        else:
            _do(rank, op)
        rank.at += 1
    return rank.at > begin


def _do(rank: Rank, op: Kernel | Host | Copy | Drain) -> None:
    if isinstance(op, Host):
        if op.name:
            rank.spans.append((rank.host, rank.host + op.ns, op.category, op.name, None, 0))
        rank.host += op.ns
    elif isinstance(op, Drain):
        end = max(rank.host, rank.compute) + US
        rank.spans.append((rank.host, end, "cuda_runtime", op.name, None, 0))
        rank.host = end
    else:
        launch, number = _call(rank, "cudaLaunchKernel")
        start = max(launch + _START_NS, rank.compute)
        rank.compute = start + op.ns
        what = (
            ("kernel", "gemm") if isinstance(op, Kernel) else ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)")
        )
        rank.spans.append((start, rank.compute, *what, COMPUTE, number))


def _call(rank: Rank, name: str) -> tuple[int, int]:
    """Launch something: when, and its correlation."""
    launch, number = rank.host, len(rank.spans) + 1
    rank.spans.append((launch, launch + _CALL_NS, "cuda_runtime", name, None, number))
    rank.host += _CALL_NS
    return launch, number


def write(
    path: Path, programs: Mapping[int, Sequence[Op]], *, skip_ranks: Sequence[int] = (), steps: int = 1
) -> Path:
    """Play, and write the run, all ranks on one host's clock: the steps of the programs, else equal ones."""
    ranks = play(programs)
    members = {op.key: op for program in programs.values() for op in program if isinstance(op, Collect)}
    manifest = RunManifest(
        zprof_version="0",
        created_ns=BASE_NS,
        world_size=len(ranks),
        backend="nccl",
        device="cuda",
        training=TrainingFacts(),
    )
    for number, rank in ranks.items():
        if number not in skip_ranks:
            _write_rank(RankWriter(path, number, manifest), rank, members, ranks, steps)
    return path


def _write_rank(
    writer: RankWriter, rank: Rank, members: Mapping[str, Collect], ranks: Mapping[int, Rank], steps: int
) -> None:
    order: dict[tuple[int, ...], int] = {}
    streams = sorted({op.stream for op in members.values()})
    spans, rows = [], []
    for span in rank.spans:
        if span[2] != "collective":
            spans.append(span)
            continue
        op = members[span[3]]
        launch, start = rank.starts[op.key]
        end = max(ranks[member].starts[op.key][1] for member in op.group) + op.ns
        stream = FIRST_COMM + streams.index(op.stream)
        spans.append((start, end, "kernel", f"ncclDevKernel_{op.kind}", stream, span[5]))
        order[op.group] = order.get(op.group, -1) + 1
        rows.append(_row(op, launch, start, end, stream, order[op.group]))
    last = max(end for _, end, *_ in spans)
    spans.sort()
    writer.write_table("events", _events(spans))
    writer.write_table(
        "collectives", {name: [row.get(name) for row in rows] for name in TABLES["collectives"].names}
    )
    edges = rank.begins or [rank.host * step // steps for step in range(steps)]
    writer.write_table("mark", _marks([*edges, max(rank.host, last) + MS]))
    writer.finish(memory_steps=(), time_steps=range(len(edges)), gaps=(), status="complete")


def _row(op: Collect, launch: int, start: int, end: int, stream: int, sequence: int) -> dict[str, object]:
    return {
        "kind": op.kind,
        "group": ",".join(str(rank) for rank in sorted(op.group)),
        "group_size": len(op.group),
        "sequence": sequence,
        "dtype": "bfloat16",
        "bytes": op.bytes,
        "start_ns": BASE_NS + start,
        "end_ns": BASE_NS + end,
        "launch_start_ns": BASE_NS + launch,
        "launch_end_ns": BASE_NS + launch + _CALL_NS,
        "unit": op.key,
        "stream": stream,
        "method": "nccl",
    }


def _events(spans: Sequence[tuple[int, int, str, str, int | None, int]]) -> dict[str, list[object]]:
    return {
        "start_ns": [BASE_NS + start for start, *_ in spans],
        "duration_ns": [end - start for start, end, *_ in spans],
        "category": [span[2] for span in spans],
        "name": [span[3] for span in spans],
        "thread": [HOST if span[4] is None else span[4] for span in spans],
        "stream": [span[4] for span in spans],
        "correlation": [span[5] or None for span in spans],
    }


def _marks(edges: Sequence[int]) -> dict[str, list[object]]:
    rows = []
    for number in range(len(edges) - 1):
        rows.append((BASE_NS + edges[number], "step_begin", number, ""))
        rows.append((BASE_NS + edges[number + 1], "step_end", number, ""))
    return {
        name: [row[column] for row in rows]
        for column, name in enumerate(("time_ns", "kind", "number", "name"))
    }
