"""Play a job whose ranks stop, and write what ncclras would answer about it, as text and as JSON.

Each rank launches the collectives of its program in order, at most ``ahead`` of them before the oldest is
finished; a collective finishes when all its members have launched the same. A rank that stops launches
nothing more; one whose process is gone does not answer either.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

#: Causes of a hang that can be planted.
HANGS: Final = ("host_stuck", "rank_without_dump")
#: Files of two answers, and when they were given.
ANSWERS: Final = {"first.json": "2026-05-05 06:16:47", "then.json": "2026-05-05 06:17:47"}
KINDS: Final = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_LAYERS: Final = 4
#: Ranks per node, and when the text lists ranks one by one.
_PER_NODE, _MAX_LISTED, _MAX_LISTED_RATIO = 8, 10, 0.25


@dataclass(frozen=True)
class StuckJob:
    """A job of tensor and data groups. ``stops``: ranks, and how many collectives each launches at most.

    ``swaps``: ranks that from that place of their program on launch two neighbouring collectives in the other
    order. ``gone``: ranks whose process does not answer. ``steps``: length of the program.
    """

    ranks: int
    tensor: int = 1
    stops: Mapping[int, int] = field(default_factory=dict)
    swaps: Mapping[int, int] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    steps: int = 8
    ahead: int = 6


@dataclass(frozen=True)
class Communicator:
    """A communicator: its hash, members, and what each has launched by kind."""

    name: str
    members: tuple[int, ...]
    counts: Mapping[int, Mapping[str, int]]


def write_answers(folder: Path, ranks: int, tensor: int, cause: str, seed: int) -> list[Path]:
    """Write two answers about a job, and ``truth.json`` with the rank that the cause was planted on.

    Without a cause all ranks stand at slightly different places, further on in the second answer.
    """
    rng = random.Random(seed)
    rank, place = rng.randrange(ranks), rng.randint(3, 40)
    gone = frozenset({rank} if cause == "rank_without_dump" else ())
    stuck = StuckJob(ranks, tensor, stops={rank: place}, gone=gone)
    jobs = [stuck, stuck if cause in HANGS else StuckJob(ranks, tensor, stops={rank: place + 5})]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for (name, time), job in zip(ANSWERS.items(), jobs, strict=True):
        paths.append(folder / name)
        paths[-1].write_text(write_json(job, play_job(job), time), encoding="utf-8")
    truth = {"cause": cause, "rank": rank if cause in HANGS else None}
    (folder / "truth.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    return paths


def play_job(job: StuckJob) -> list[Communicator]:
    """Return the communicators once no rank can launch anything more."""
    groups = _list_groups(job)
    programs = [_write_program(job, groups, rank) for rank in range(job.ranks)]
    launched = [0] * job.ranks
    #: Of each rank: the group of each collective, and its number in the group.
    numbers = [_number_in_groups(program) for program in programs]
    kinds: list[dict[int, list[str]]] = [{rank: [] for rank in members} for members in groups]
    is_moving = True
    while is_moving:
        is_moving = False
        finished = [_count_finished(list(each.values())) for each in kinds]
        for rank in range(job.ranks):
            limit = min(len(programs[rank]), job.stops.get(rank, len(programs[rank])))
            while launched[rank] < limit:
                oldest = launched[rank] - job.ahead
                if oldest >= 0 and numbers[rank][oldest][1] > finished[numbers[rank][oldest][0]]:
                    break
                group, kind = programs[rank][launched[rank]]
                kinds[group][rank].append(kind)
                launched[rank] += 1
                is_moving = True
    return [
        Communicator(
            name=f"{0xA100_0000_0000_0000 + number:016x}",
            members=members,
            counts={rank: Counter(kinds[number][rank]) for rank in members},
        )
        for number, members in enumerate(groups)
    ]


def _number_in_groups(program: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
    seen: Counter[int] = Counter()
    numbers = []
    for group, _ in program:
        seen[group] += 1
        numbers.append((group, seen[group]))
    return numbers


def _count_finished(launched: Sequence[Sequence[str]]) -> int:
    return sum(1 for _ in takewhile(lambda kinds: len(set(kinds)) == 1, zip(*launched, strict=False)))


def _list_groups(job: StuckJob) -> list[tuple[int, ...]]:
    """Return the members of the group of all ranks, of the tensor groups and of the data groups."""
    groups = [tuple(range(job.ranks))]
    if job.tensor > 1:
        groups += [tuple(range(first, first + job.tensor)) for first in range(0, job.ranks, job.tensor)]
        groups += [tuple(range(first, job.ranks, job.tensor)) for first in range(job.tensor)]
    return groups


def _write_program(job: StuckJob, groups: Sequence[tuple[int, ...]], rank: int) -> list[tuple[int, str]]:
    own = [number for number, members in enumerate(groups) if rank in members]
    data, tensor = own[-1], own[1] if job.tensor > 1 else None
    step = [(data, "AllGather")]
    for _ in range(_LAYERS):
        step += [(tensor, "AllReduce")] * 2 if tensor is not None else [(data, "AllGather")]
    step += [(data, "ReduceScatter"), (own[0], "AllReduce")]
    program = step * job.steps
    if rank in job.swaps:
        place = job.swaps[rank]
        program[place : place + 2] = reversed(program[place : place + 2])
    return program


def write_json(
    job: StuckJob, communicators: Sequence[Communicator], time: str = "2026-05-05 06:16:47"
) -> str:
    """Return what ``ncclras -f json`` answers."""
    tree = {
        "nccl_version": "2.30.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": time,
        "communicators_count": len(communicators),
        "communicators": [_make_tree(job, each) for each in communicators],
        "ras": {"collection_time_sec": 0.003, "timeouts_count": int(bool(job.gone))},
    }
    return json.dumps(tree, indent=2) + "\n"


def _make_tree(job: StuckJob, communicator: Communicator) -> dict[str, object]:
    members = communicator.members
    missing = [number for number, rank in enumerate(members) if rank in job.gone]
    fine = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False}
    return {
        "hash": f"0x{communicator.name}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(members),
        "ranks_count": len(members) - len(missing),
        "missing_ranks_count": len(missing),
        "ranks": [
            _make_place(number, rank)
            | {
                "status": fine | {"abort_flag": False},
                "collective_counts": {kind: communicator.counts[rank].get(kind, 0) for kind in KINDS},
            }
            for number, rank in enumerate(members)
            if number not in missing
        ],
        "missing_ranks": [
            _make_place(number, members[number])
            | {"status": {"unresponsive": True, "considered_dead": False}}
            for number in missing
        ],
    }


def _make_place(number: int, rank: int) -> dict[str, object]:
    device = rank % _PER_NODE
    return {
        "rank": number, "host": f"10.0.0.{1 + rank // _PER_NODE}", "pid": 4000 + rank, "cuda_dev": device,
        "nvml_dev": device,
    }  # fmt: skip


def write_text(job: StuckJob, communicators: Sequence[Communicator]) -> str:
    """Return what ``ncclras`` answers: of communicators that differ, the ranks that few others equal."""
    alike: dict[tuple[int, int, str], list[Communicator]] = defaultdict(list)
    for each in communicators:
        spread = len({rank // _PER_NODE for rank in each.members})
        alike[len(each.members), spread, _name_errors(job, each)].append(each)
    groups = sorted(alike.items(), key=lambda item: (-item[0][0], -item[0][1], item[0][2] == "OK"))
    lines = _list_head(job)
    for number, ((size, spread, errors), members) in enumerate(groups):
        lines.append(
            f"{number:5}  {len(members):8}  {spread:8}  {size // spread:8}  {size:8}  "
            f"{size * len(members):8}  {'RUNNING':>8}  {errors:>6}"
        )
    named = {
        f"#{number}-{place} ({each.name})": each
        for number, (_, members) in enumerate(groups)
        for place, each in enumerate(members)
    }
    lines += ["", "Errors", "======", "", *_list_missing(job, named), "Warnings", "========", ""]
    for name, each in named.items():
        if "MISMATCH" in _name_errors(job, each):
            lines += [f"{name} MISMATCH", *_list_differences(job, each)]
    return "\n".join(lines) + "\n"


def _list_head(job: StuckJob) -> list[str]:
    nodes = -(-job.ranks // _PER_NODE)
    return [
        "NCCL version 2.30.7 compiled with CUDA 13.0",
        "CUDA runtime version 13000, driver version 13000",
        "",
        "Job summary",
        "===========",
        "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{nodes:7}  {job.ranks // nodes:9}  {1:11}  {job.ranks:9}  {job.ranks:7}",
        "",
        "Communicators... (0.00s)",
        "=============",
        "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
    ]


def _list_missing(job: StuckJob, named: Mapping[str, Communicator]) -> list[str]:
    if not job.gone:
        return []
    plural = "es" if len(job.gone) > 1 else ""
    lines = ["INCOMPLETE", f"  Missing communicator data from {len(job.gone)} job process{plural}"]
    lines += [f"  {_name_process(rank)} managing GPU {rank % _PER_NODE}" for rank in sorted(job.gone)]
    lines.append("")
    for name, each in named.items():
        missing = [rank for rank in each.members if rank in job.gone]
        if missing:
            several = "s" if len(missing) > 1 else ""
            lines += [f"{name} INCOMPLETE", f"  Missing communicator data from {len(missing)} rank{several}"]
            lines += [*(f"  Rank {_name_rank(each, rank)}" for rank in missing), ""]
    return lines


def _name_errors(job: StuckJob, communicator: Communicator) -> str:
    answered = [rank for rank in communicator.members if rank not in job.gone]
    counts = {tuple(communicator.counts[rank].get(kind, 0) for kind in KINDS) for rank in answered}
    errors = ["INCOMPLETE"] * (len(answered) < len(communicator.members)) + ["MISMATCH"] * (len(counts) > 1)
    return ",".join(errors) or "OK"


def _list_differences(job: StuckJob, communicator: Communicator) -> list[str]:
    lines = []
    for kind in KINDS:
        ranks: dict[int, list[int]] = defaultdict(list)
        for rank in communicator.members:
            if rank not in job.gone:
                ranks[communicator.counts[rank].get(kind, 0)].append(rank)
        if len(ranks) < 2:
            continue
        lines.append(f"  Communicator ranks have different {kind} operation counts")
        for count, members in sorted(ranks.items(), key=lambda item: (-len(item[1]), -item[0])):
            what = f"launched up to operation {count}" if count else "not launched any operations"
            if len(members) > 1:
                lines.append(f"  {len(members)} ranks have {what}")
            is_few = len(members) <= min(_MAX_LISTED, len(communicator.members) * _MAX_LISTED_RATIO)
            if len(members) == 1:
                number, _, rest = _name_rank(communicator, members[0]).partition(" ")
                lines.append(f"  Rank {number} has {what} {rest}")
            elif is_few:
                lines += [f"  Rank {_name_rank(communicator, rank)}" for rank in members]
        lines.append("")
    return lines


def _name_process(rank: int) -> str:
    return f"Process {4000 + rank} on node 10.0.0.{1 + rank // _PER_NODE}"


def _name_rank(communicator: Communicator, rank: int) -> str:
    number = communicator.members.index(rank)
    process = _name_process(rank).replace("Process", "process")
    return f"{number} -- GPU {rank % _PER_NODE} managed by {process}"
