"""The logs that torch of each version would write of a simulated job that hangs, with what they prove.

    python -m benchmarks.hang_jobs.logs SEED [--fault NAME] [--version 2.7] [--cut complete] [--keep FOLDER]

prints one. A rank whose watchdog lives writes of each group in which it waits; one that waits in nothing only
answers the dump signal; one that is dead, stopped or holds the interpreter lock writes nothing. The launcher
ends the other ranks soon after the first that ends: what they would have written later is not in the log.
"""

import argparse
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.json import encode, format

from benchmarks.hang_jobs.engine import Entry
from benchmarks.hang_jobs.faults import FAULTS, HEALTHY
from benchmarks.hang_jobs.job import RANKS_PER_NODE, Job, count_earlier, draw_job
from benchmarks.hang_jobs.log_cuts import CUTS, Line, write_cut
from benchmarks.hang_jobs.log_forms import (
    FORMS,
    NCCL_INIT,
    NCCL_NAMES,
    NO_STACK,
    OP_TYPES,
    SECOND_NS,
    TIMEOUT_MS,
    VERSIONS,
    Counters,
    Form,
    count_numels,
    make_pid,
    write_ends,
    write_group,
    write_head,
    write_last_status,
    write_launcher_head,
    write_nccl_call,
    write_nccl_head,
    write_notice,
    write_root_cause,
    write_signal,
    write_status,
    write_timeout,
)
from benchmarks.hang_jobs.log_truth import Fact, LogTruth, make_truth
from benchmarks.hang_jobs.mesh import Group

START_NS = 36_000 * SECOND_NS
#: How long a rank waits for its dump before it ends, and how often a rank asks for a dump signal.
DUMP_NS, POLL_NS = 60 * SECOND_NS, SECOND_NS
MILLISECOND_NS = 1_000_000
NEVER_NS = 10**18
CALLS_PER_RANK = 6
#: Codes with which a rank dies: killed, a bad access, out of shared memory, an exception.
EXIT_CODES = (-9, -9, -11, -7, 1)


class Wait(Struct, frozen=True, kw_only=True):
    """The oldest operation of a group that a rank waits in, and when its watchdog gives up."""

    rank: int
    group: Group
    entry: Entry
    sequence: int
    at_ns: int


class Hang(Struct, frozen=True, kw_only=True):
    """A job at the time of its log. ``ended_ns``: when a rank ends; 0 if it writes nothing at all."""

    job: Job
    form: Form
    has_signals: bool
    offsets: Mapping[str, int]
    waits: Mapping[int, list[Wait]]
    aborts_ns: Mapping[int, int]
    ended_ns: Mapping[int, int]


def list_versions(job: Job) -> tuple[str, ...]:
    """Return the versions whose logs can be written of a job: NCCL's own only of one group on one node."""
    if job.mesh.kind == "ddp" and job.mesh.world <= RANKS_PER_NODE:
        return VERSIONS
    return tuple(FORMS)


def write_logs(job: Job, folder: Path, version: str, cut: str, seed: int) -> LogTruth:
    """Write a job's log, cut as people paste it, and ``truth.json``; return the truth.

    ``version`` is one of :func:`list_versions`, ``cut`` one of ``CUTS``.
    """
    rng = random.Random(f"{seed} {version} {cut} {job.truth.fault}")
    lines = list_calls(job, rng, version) if version in NCCL_INIT else list_lines(job, rng, FORMS[version])
    lines = sorted([*lines, *_list_progress(rng)], key=lambda line: line.at_ns)
    path, kept = write_cut(rng, lines, folder, cut)
    facts = [line.fact for line in kept if line.fact is not None]
    truth = make_truth(job, version, cut, path, facts)
    (folder / "truth.json").write_bytes(format(encode(truth)) + b"\n")
    return truth


def _list_progress(rng: random.Random) -> list[Line]:
    step = rng.randrange(10, 5000)
    return [
        Line(
            rank=0,
            at_ns=START_NS + index * SECOND_NS // 4,
            text=f"step {step + index} | loss {rng.uniform(1, 3):.4f} | {rng.uniform(0.5, 4):.2f} it/s",
        )
        for index in range(rng.randint(2, 6))
    ]


def list_lines(job: Job, rng: random.Random, form: Form) -> list[Line]:
    """Return all lines that the ranks and the launcher of a job write, in any order."""
    if job.truth.fault in HEALTHY:
        return []
    died_ns = _draw_deaths(rng, job)
    hang = _play(job, rng, form, died_ns)
    lines = [line for rank in hang.waits for line in _list_of_rank(rng, hang, rank)]
    if hang.has_signals:
        lines += _list_signals(rng, hang)
    lines = [line for line in lines if line.at_ns <= START_NS + hang.ended_ns[line.rank]]
    return lines + _list_endings(rng, hang, died_ns)


def _draw_deaths(rng: random.Random, job: Job) -> dict[int, int]:
    """Return when ranks die that do."""
    if job.truth.fault != "rank_died":
        return {}
    return {
        rank: max((entry.created_ns for entry in job.schedule.entries[rank]), default=0)
        + rng.randint(1, 50) * MILLISECOND_NS
        for rank in job.outcome.plan.culprits
    }


def _play(job: Job, rng: random.Random, form: Form, died_ns: Mapping[int, int]) -> Hang:
    """Find who waits where, and when each process ends."""
    mesh = job.mesh
    has_signals = form.dumps or (bool(form.signals) and rng.random() < 0.4)
    offsets = count_earlier(job.outcome, job.dialect)
    silent = set(died_ns)
    if job.truth.fault == "host_stuck" and rng.random() < 0.4:
        silent |= set(job.outcome.plan.culprits)  # stopped, or another thread holds the interpreter lock
    silent |= {
        rank
        for rank in range(mesh.world)
        if job.schedule.is_ended[rank] and not job.outcome.list_pending(rank)
    }
    waits = {
        rank: _list_waits(job, rng, form, offsets, rank) for rank in range(mesh.world) if rank not in silent
    }
    patience_ns = DUMP_NS if has_signals else SECOND_NS // 5
    for rank, mine in waits.items():
        waits[rank] = [each for each in mine if each.at_ns <= mine[0].at_ns + patience_ns]
    aborts_ns = {rank: mine[0].at_ns + patience_ns for rank, mine in waits.items() if mine}
    ended_ns = dict.fromkeys(range(mesh.world), 0)
    first_ns = min(aborts_ns.values(), default=NEVER_NS)
    is_launched = rng.random() < 0.6  # by torchrun, which ends a node whose rank has died
    for node in range(0, mesh.world, RANKS_PER_NODE):
        ranks = range(node, min(node + RANKS_PER_NODE, mesh.world))
        own_ns = min((aborts_ns.get(rank, NEVER_NS) for rank in ranks), default=NEVER_NS)
        end_ns = min(own_ns + rng.randint(1, 30) * SECOND_NS // 10, first_ns + rng.randint(5, 20) * SECOND_NS)
        if is_launched:
            end_ns = min([end_ns, *(died_ns[rank] for rank in ranks if rank in died_ns)])
        ended_ns.update({rank: end_ns for rank in ranks if rank not in silent})
    return Hang(
        job=job,
        form=form,
        has_signals=has_signals,
        offsets=offsets,
        waits=waits,
        aborts_ns=aborts_ns,
        ended_ns=ended_ns,
    )


def _list_waits(
    job: Job, rng: random.Random, form: Form, offsets: Mapping[str, int], rank: int
) -> list[Wait]:
    """Return a rank's waits in the order in which its watchdogs give up."""
    firsts: dict[str, Entry] = {}
    for entry in job.outcome.list_pending(rank):
        assert entry.op.group is not None
        firsts.setdefault(entry.op.group.name, entry)
    waits = [
        Wait(
            rank=rank,
            group=entry.op.group,
            entry=entry,
            sequence=_number(form, entry, offsets[name]),
            at_ns=entry.created_ns + TIMEOUT_MS * MILLISECOND_NS + rng.randint(1, 95) * MILLISECOND_NS,
        )
        for name, entry in firsts.items()
        if entry.op.group is not None
    ]
    return sorted(waits, key=lambda wait: wait.at_ns)


def _number(form: Form, entry: Entry, offset: int) -> int:
    """Return the number that torch gives an operation: before 2.3 sends and receives are not counted."""
    if entry.op.is_collective:
        return entry.sequence + offset
    if form.minor < 3:
        return entry.sequence
    return entry.p2p_sequence + offset


def _count(hang: Hang, rank: int, group: Group) -> Counters:
    """Return the counters of a group as they stand when the job hangs."""
    none = 0 if hang.form.minor == 3 else -1
    offset = hang.offsets[group.name]
    mine = [entry for entry in hang.job.schedule.entries[rank] if entry.op.group is group]
    done = [entry for entry in mine if not hang.job.outcome.is_pending(entry)]
    started = [entry for entry in mine if entry.started_ns is not None]
    enqueued = _number(hang.form, mine[-1], offset) if mine else offset or none
    last = max(done, key=lambda entry: (entry.completed_ns or 0, entry.index), default=None)
    completed = _number(hang.form, last, offset) if last is not None else offset or none
    is_timed = hang.job.dialect.has_timing and bool(started)
    return Counters(
        enqueued=enqueued,
        started=_number(hang.form, started[-1], offset) if is_timed else -1,
        completed=completed,
    )


def _list_of_rank(rng: random.Random, hang: Hang, rank: int) -> list[Line]:
    """Return the lines of a rank's watchdogs."""
    waits = hang.waits[rank]
    if not waits:
        return []
    form = hang.form
    lines = []
    # The watchdog's sentence names the place in the group that wrote first in this process (2.3 on).
    for wait in waits:
        first = waits[0].group if form.minor >= 3 else wait.group
        lines += _list_of_wait(hang, wait, first.ranks.index(rank), is_first=wait is waits[0])
    wait, end_ns = waits[0], hang.aborts_ns[rank]
    place = wait.group.ranks.index(rank)
    prefix = _write_prefix(hang, wait.group, rank)
    sentence = write_timeout(place, wait.sequence, wait.entry, TIMEOUT_MS + 7)
    state = _make_fact(hang, wait, "status")
    texts = [write_last_status(form, prefix, wait.sequence, _count(hang, rank, wait.group))]
    texts += write_ends(form, prefix, place, sentence)
    for index, text in enumerate(texts):
        if text:
            fact = state if index == 0 else _make_fact(hang, wait, "timeout") if index == 3 else None
            lines.append(_make_line(form, rank, end_ns + index * 60_000, text, wait.group, fact, index))
    if rng.random() < 0.5:
        text = "terminate called after throwing an instance of 'c10::DistBackendError'"
        lines.append(Line(rank=rank, at_ns=START_NS + end_ns + 300_000, text=text))
        lines.append(Line(rank=rank, at_ns=START_NS + end_ns + 310_000, text=f"  what():  {texts[-1]}"))
    return lines


def _list_of_wait(hang: Hang, wait: Wait, place: int, *, is_first: bool) -> list[Line]:
    """Return what a watchdog writes when an operation has timed out."""
    form, rank = hang.form, wait.rank
    ran_ms = (wait.at_ns - wait.entry.created_ns) // MILLISECOND_NS
    prefix = _write_prefix(hang, wait.group, rank)
    status = write_status(form, prefix, wait.sequence, _count(hang, rank, wait.group))
    notice = write_notice(form, is_own=True) if hang.has_signals and is_first else ""
    written: list[tuple[str, Fact | None]] = [
        (
            write_timeout(place, wait.sequence, wait.entry, ran_ms),
            _make_fact(hang, wait, "timeout", is_named=False),
        ),
        (status, _make_fact(hang, wait, "status")),
        (NO_STACK if form.minor >= 6 else "", None),
        (f"{prefix}{notice}" if notice else "", None),
    ]
    return [
        _make_line(form, rank, wait.at_ns + index * 120_000, text, wait.group, fact, index)
        for index, (text, fact) in enumerate(written)
        if text
    ]


def _list_signals(rng: random.Random, hang: Hang) -> list[Line]:
    """Return the answers of all living ranks to the dump signals; each asks about once a second."""
    form = hang.form
    sent = sorted((mine[0].at_ns, rank) for rank, mine in hang.waits.items() if mine)
    if not sent:
        return []
    lines = []
    for rank in hang.waits:
        at_ns = sent[0][0] + rng.randint(POLL_NS // 5, POLL_NS)
        is_own = any(wait.at_ns <= at_ns for wait in hang.waits[rank])
        source = None if is_own else [each for when_ns, each in sent if when_ns <= at_ns][-1]
        default = hang.job.mesh.of_rank[rank]["world"]
        prefix, counters = _write_prefix(hang, default, rank), _count(hang, rank, default)
        notice = "" if is_own else write_notice(form, is_own=False)
        if notice:
            lines.append(_make_line(form, rank, at_ns - 50_000, f"{prefix}{notice}", default, None, 9))
        fact = Fact(
            kind="signal",
            rank=rank,
            group=default.name,
            enqueued=counters.enqueued,
            completed=counters.completed,
            is_own=is_own,
        )
        text = write_signal(form, prefix, source, counters)
        lines.append(_make_line(form, rank, at_ns, text, default, fact, 9))
    return lines


def _make_fact(hang: Hang, wait: Wait, kind: str, *, is_named: bool = True) -> Fact:
    """Return what a line about a wait says; ``is_named``: whether it has the prefix of the group."""
    form, group = hang.form, wait.group
    # Numbers that each rank counts for itself name a group to others only if it is the first one.
    is_shared = form.group in ("name", "guid") or (form.group == "id" and group.role == "world")
    operation = OP_TYPES[wait.entry.op.kind] if kind == "timeout" else ""
    counters = _count(hang, wait.rank, group)
    return Fact(
        kind=kind,
        rank=wait.rank if form.has_rank else group.ranks.index(wait.rank),
        is_global=form.has_rank,
        group=group.name if is_named and is_shared else "",
        sequence=wait.sequence,
        operation=operation,
        numel_in=count_numels(wait.entry)[0] if kind == "timeout" else 0,
        enqueued=counters.enqueued if kind == "status" else -1,
        completed=counters.completed if kind == "status" else -1,
        size=len(group.ranks) if operation in ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE") else 0,
        is_p2p=not wait.entry.op.is_collective,
    )


def _write_prefix(hang: Hang, group: Group, rank: int) -> str:
    groups = list(dict.fromkeys(hang.job.mesh.of_rank[rank].values()))
    ids = {each.name: place for place, each in enumerate(sorted(groups, key=lambda each: int(each.name)))}
    return write_group(hang.form, group, ids[group.name], rank)


def _make_line(
    form: Form, rank: int, at_ns: int, text: str, group: Group, fact: Fact | None, place: int
) -> Line:
    """Return a line of C++; ``place`` stands for where in the source it is written."""
    at_ns += START_NS
    head = write_head(form, rank, at_ns, form.line if place == 0 else form.line + 700 + 45 * place)
    return Line(rank=rank, at_ns=at_ns, text=head + text, fact=fact, group=group.name)


def _list_endings(rng: random.Random, hang: Hang, died_ns: Mapping[int, int]) -> list[Line]:
    """Return what torchrun writes of the rank that ended first on a node."""
    ends_ns = dict(died_ns)
    if not died_ns:
        if rng.random() < 0.5 or not hang.aborts_ns:
            return []
        first = min(hang.aborts_ns, key=lambda rank: hang.aborts_ns[rank])
        ends_ns = {first: hang.aborts_ns[first]}
    lines = []
    for rank, end_ns in ends_ns.items():
        node = rank // RANKS_PER_NODE * RANKS_PER_NODE
        others = [
            each
            for each in range(node, min(node + RANKS_PER_NODE, hang.job.mesh.world))
            if each != rank and hang.ended_ns[each] <= end_ns + 3 * SECOND_NS
        ]
        if died_ns and (not others or any(hang.ended_ns[each] > end_ns for each in others)):
            continue  # the ranks were started one by one: nobody tells of its end
        code = rng.choice(EXIT_CODES) if died_ns else -6
        lines += _list_ending(hang.form, rank, code, others, START_NS + end_ns + SECOND_NS)
    return lines


def _list_ending(form: Form, rank: int, code: int, others: list[int], at_ns: int) -> list[Line]:
    warn, fail = (write_launcher_head(form, at_ns, severity) for severity in "WE")
    texts = [f"{warn}Sending process {make_pid(each)} closing signal SIGTERM" for each in others]
    local = rank % RANKS_PER_NODE
    texts.append(
        f"{fail}failed (exitcode: {code}) local_rank: {local} (pid: {make_pid(rank)}) "
        "of binary: /usr/bin/python3"
    )
    table = write_root_cause(rank, local, code, at_ns)
    lines = [
        Line(rank=-1, at_ns=at_ns + index * 1000, text=text) for index, text in enumerate([*texts, *table])
    ]
    place = next(index for index, line in enumerate(lines) if line.text.startswith("  exitcode"))
    lines[place] = Line(
        rank=-1,
        at_ns=lines[place].at_ns,
        text=lines[place].text,
        fact=Fact(kind="exit", rank=rank, exit_code=code),
    )
    return lines


def list_calls(job: Job, rng: random.Random, version: str) -> list[Line]:
    """Return NCCL's own lines of a job of one group: the communicator, and the last calls of each rank."""
    lines = []
    offset = count_earlier(job.outcome, job.dialect)["0"]
    for rank in range(job.mesh.world):
        comm = f"0x55b{rng.randrange(16**5):05x}"
        values = {
            "comm": comm,
            "rank": rank,
            "size": job.mesh.world,
            "device": rank,
            "bus": f"{rank + 1:x}b000",
        }
        text = write_nccl_head(rank) + NCCL_INIT[version].format(**values, id="0x8a2f01c4")
        lines.append(Line(rank=rank, at_ns=START_NS + rank * MILLISECOND_NS, text=text))
        entered = [entry for entry in job.schedule.entries[rank] if entry.created_ns <= job.dump_ns[rank]]
        for entry in entered[-CALLS_PER_RANK:]:
            count = entry.sequence + offset - 1
            fact = Fact(
                kind="call",
                rank=rank,
                sequence=count,
                operation=NCCL_NAMES[entry.op.kind],
                numel_in=count_numels(entry)[0],
                size=job.mesh.world,
            )
            text = write_nccl_head(rank) + write_nccl_call(rng, entry, count, comm)
            lines.append(Line(rank=rank, at_ns=START_NS + SECOND_NS + entry.created_ns, text=text, fact=fact))
    return lines


def main() -> None:
    """Print a log and its truth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--fault", choices=[*FAULTS, *HEALTHY])
    parser.add_argument("--version", choices=VERSIONS, default="2.7")
    parser.add_argument("--cut", choices=CUTS, default="complete")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="leave the log here")
    arguments = parser.parse_args()
    job = draw_job(arguments.seed, arguments.fault)
    if arguments.version not in list_versions(job):
        parser.error(f"the job of seed {arguments.seed} has several groups or nodes: take a version of torch")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.keep or temporary)
        write_logs(job, folder, arguments.version, arguments.cut, arguments.seed)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            print(f"--- {path.relative_to(folder)}")
            print(path.read_text())


if __name__ == "__main__":
    main()
