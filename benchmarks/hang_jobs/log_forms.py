"""The lines that versions of torch and NCCL write about an operation that does not end.

Read in the releases themselves: the strings of the CUDA wheels 2.1.2 to 2.13.0, the tags of NCCL 2.10 to
2.30.
Only the form is here; who writes what, and when, is in :mod:`benchmarks.hang_jobs.logs`.
"""

import random

from msgspec import Struct

from benchmarks.hang_jobs.engine import Entry
from benchmarks.hang_jobs.mesh import Group

TIMEOUT_MS = 600_000
SECOND_NS = 1_000_000_000
#: The names that torch prints of what the jobs run.
OP_TYPES = {
    "all_reduce": "ALLREDUCE",
    "reduce": "REDUCE",
    "broadcast": "BROADCAST",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "send": "SEND",
    "recv": "RECV",
    "coalesced": "COALESCED",
}
NCCL_NAMES = {"all_reduce": "AllReduce", "reduce": "Reduce", "broadcast": "Broadcast"}
NCCL_INIT = {
    "nccl-2.10": "comm {comm} rank {rank} nranks {size} cudaDev {device} busId {bus} - Init COMPLETE",
    "nccl-2.18": "comm {comm} rank {rank} nranks {size} cudaDev {device} nvmlDev {device} busId {bus} "
    "commId {id} - Init COMPLETE",
    "nccl-2.21": "ncclCommInitRank comm {comm} rank {rank} nranks {size} cudaDev {device} nvmlDev {device} "
    "busId {bus} commId {id} - Init COMPLETE",
    "nccl-2.27": "ncclCommInitRankConfig comm {comm} rank {rank} nranks {size} cudaDev {device} "
    "nvmlDev {device} busId {bus} commId {id} - Init COMPLETE",
}
ASYNCHRONOUS = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
    "subsequent GPU operations might run on corrupted/incomplete data."
)
TEAR_DOWN = "To avoid data inconsistency, we are taking the entire process down."
LIKELY = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, "
    "the order of collectives is not same for all ranks or the scheduled collective, for some reason, "
    "didn't run. Additionally, this can be caused by GIL deadlock or other reasons such as network errors or "
    "bugs in the communications library (e.g. NCCL), etc. "
)
NO_STACK = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. "
    "You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)


class Form(Struct, frozen=True, kw_only=True):
    """How a version of torch writes.

    ``group``: what names a group: "none", "id" (counted by each rank), "name" or "guid". ``signals``: the
    wording of a dump signal ("" if there is none), which is on by default if ``dumps``: then a rank waits a
    minute before it ends. ``line``: a line of the source, which only its versions have.
    """

    version: str
    line: int
    group: str
    signals: str = ""
    dumps: bool = False
    has_rank: bool = True
    has_time: bool = True

    @property
    def minor(self) -> int:
        """Return the number after "2."."""
        return int(self.version.split(".")[1])


FORMS = {
    form.version: form
    for form in (
        Form(version="2.1", line=474, group="none", has_rank=False, has_time=False),
        Form(version="2.2", line=523, group="none", has_time=False),
        Form(version="2.3", line=563, group="id", signals="timeout", has_time=False),
        Form(version="2.4", line=607, group="name", signals="global"),
        Form(version="2.5", line=616, group="guid", signals="due"),
        Form(version="2.6", line=629, group="guid", signals="due", dumps=True),
        Form(version="2.7", line=632, group="guid", signals="due", dumps=True),
        Form(version="2.10", line=689, group="guid", signals="due", dumps=True),
        Form(version="2.13", line=757, group="guid", signals="due", dumps=True),
    )
}
VERSIONS = (*FORMS, *NCCL_INIT)


class Counters(Struct, frozen=True, kw_only=True):
    """Last enqueued, started and completed work of a rank in a group (-1: none, or not known)."""

    enqueued: int
    started: int
    completed: int


def count_numels(entry: Entry) -> tuple[int, int]:
    """Return how many elements an operation takes and gives, as torch prints them."""
    op = entry.op
    assert op.group is not None
    if op.parts:
        return 0, 0
    taken, given = (sum(_multiply(size) for size in sizes) for sizes in (op.in_sizes, op.out_sizes))
    size = len(op.group.ranks)
    if op.kind == "_all_gather_base":
        return taken, taken * size
    if op.kind == "_reduce_scatter_base":
        return taken // size * size, taken // size
    return (taken, given) if op.kind == "all_to_all" else (taken, taken)


def _multiply(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def write_head(form: Form, rank: int, at_ns: int, line: int, severity: str = "E") -> str:
    """Return what stands before the text of a C++ line. Times are of one day, from its start."""
    who = f"[rank{rank}]:" if form.has_rank else ""
    time = ""
    if form.has_time:
        seconds, nanoseconds = divmod(at_ns, SECOND_NS)
        minutes, second = divmod(seconds, 60)
        time = f"806 {minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}.{nanoseconds:09} "
    return f"{who}[{severity}{time or ' '}ProcessGroupNCCL.cpp:{line}] "


def write_group(form: Form, group: Group, group_id: int, rank: int) -> str:
    """Return the prefix that names a group, with the blank behind it; ``rank`` is global."""
    place = group.ranks.index(rank)
    if form.group == "none":
        return f"[Rank {place}] "
    if form.group == "id":
        return f"[PG {group_id} Rank {place}] "
    if form.group == "name":
        return f"[PG {group.name} ({group.description}) Rank {place}] "
    return f"[PG ID {group_id} PG GUID {group.name}({group.description}) Rank {place}] "


def write_timeout(place: int, sequence: int, entry: Entry, ran_ms: int) -> str:
    """Return the watchdog's sentence; ``place`` is the rank in a group."""
    taken, given = count_numels(entry)
    return (
        f"[Rank {place}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, "
        f"OpType={OP_TYPES[entry.op.kind]}, NumelIn={taken}, NumelOut={given}, Timeout(ms)={TIMEOUT_MS}) "
        f"ran for {ran_ms} milliseconds before timing out."
    )


def write_status(form: Form, prefix: str, sequence: int, counters: Counters) -> str:
    """Return the line that follows a timeout ("" before 2.3, and in 2.3 until the rank ends)."""
    if form.minor < 4:
        return ""
    if form.minor < 6:
        return (
            f"{prefix}Exception (either an error or timeout) detected by watchdog at work: {sequence}, "
            f"last enqueued NCCL work: {counters.enqueued}, last completed NCCL work: {counters.completed}."
        )
    started = f", last started work: {counters.started}" if form.minor >= 13 else ""
    return (
        f"{prefix} failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued "
        f"work: {counters.enqueued}{started}, last completed work: {counters.completed}"
    )


def write_last_status(form: Form, prefix: str, sequence: int, counters: Counters) -> str:
    """Return the line that 2.3 to 2.5 write when the rank ends."""
    if form.minor not in (3, 4, 5):
        return ""
    return (
        f"{prefix}Timeout at NCCL work: {sequence}, last enqueued NCCL work: {counters.enqueued}, "
        f"last completed NCCL work: {counters.completed}."
    )


def write_signal(form: Form, prefix: str, source: int | None, counters: Counters) -> str:
    """Return a rank's answer to a dump signal of ``source`` (None: its own).

    The counters are those of the default group, whatever group has timed out.
    """
    state = f"Last enqueued NCCL work: {counters.enqueued}, last completed NCCL work: {counters.completed}."
    if form.signals == "due":
        sender = "this local rank" if source is None else f" rank {source}"
        return (
            f"{prefix}Received a dump signal due to a collective timeout from {sender} and we will try our "
            f"best to dump the debug info. {state}{LIKELY}"
        )
    if form.signals == "timeout":
        sender = (
            "timeout signal from this local rank" if source is None else "global timeout from another rank"
        )
        return f"{prefix}Received a {sender} and will start to dump the debug info. {state}"
    sender = (
        "dump signal from this local rank and"
        if source is None
        else f"global dump signal from rank {source}, and"
    )
    return f"{prefix}Received a {sender} will start to dump the debug info. {state}"


def write_notice(form: Form, *, is_own: bool) -> str:
    """Return what a group says when it sends a dump signal, or a rank when it sees another's."""
    if is_own:
        return {
            "2.4": "First watchdog to set the dump signal.",
            "2.5": "Broadcasting flight-recorder dump signal to other processes via TCPStore.",
        }.get(form.version, "First PG on this rank to signal dumping." if form.minor >= 7 else "")
    if form.minor >= 5:
        return "Observed flight recorder dump signal from another rank via TCPStore."
    return "First PG on this rank detecting the dump signal through tcpstore." if form.minor == 4 else ""


def write_ends(form: Form, prefix: str, place: int, sentence: str) -> list[str]:
    """Return what a rank writes when its watchdog takes it down."""
    who = "" if form.minor < 3 else f"[Rank {place}] "
    thread = "NCCL" if form.minor < 3 else "Process group"
    return [
        f"{who}{ASYNCHRONOUS}",
        f"{who}{TEAR_DOWN}",
        f"{prefix}{thread} watchdog thread terminated with exception: {sentence}",
    ]


def write_launcher_head(form: Form, at_ns: int, severity: str) -> str:
    """Return what stands before a line of torchrun."""
    seconds, nanoseconds = divmod(at_ns, SECOND_NS)
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}"
    if form.minor < 4:
        level = "ERROR" if severity == "E" else "WARNING"
        module = "torch.distributed.elastic.multiprocessing.api"
        return f"[2026-08-06 {clock},{nanoseconds // 1_000_000:03}] {module}: [{level}] "
    return (
        f"{severity}0806 {clock}.{nanoseconds // 1_000_000:03}000 4242 site-packages/torch/distributed/"
        f"elastic/multiprocessing/api.py:{874 if severity == 'E' else 900}] "
    )


def write_root_cause(rank: int, local: int, exit_code: int, at_ns: int) -> list[str]:
    """Return the table that torchrun ends with."""
    minutes, second = divmod(at_ns // SECOND_NS, 60)
    names = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV"}
    pid = make_pid(rank)
    message = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if exit_code < 0:
        message = f"Signal {-exit_code} ({names[-exit_code]}) received by PID {pid}"
    border = 60
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * border,
        "train.py FAILED",
        "-" * border,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * border,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : 2026-08-06_{minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}",
        f"  host      : node{rank // 8:03}",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {exit_code} (pid: {pid})",
        "  error_file: <N/A>",
        f"  traceback : {message}",
        "=" * border,
    ]


def make_pid(rank: int) -> int:
    """Return the process of a rank."""
    return 40_000 + 37 * rank


def write_nccl_head(rank: int) -> str:
    """Return what stands before a line of NCCL; the ranks of one node have its devices in their order."""
    pid = make_pid(rank)
    return f"node000:{pid}:{pid + 3} [{rank}] NCCL INFO "


def write_nccl_call(rng: random.Random, entry: Entry, count: int, comm: str) -> str:
    """Return the line of a call; ``count`` is the communicator's number of the operation, from 0."""
    assert entry.op.group is not None
    buffer = f"0x7f{rng.randrange(16**8):08x}"
    return (
        f"{NCCL_NAMES[entry.op.kind]}: opCount {count:x} sendbuff {buffer} recvbuff {buffer} count "
        f"{count_numels(entry)[0]} datatype 7 op 0 root 0 comm {comm} [nranks={len(entry.op.group.ranks)}] "
        f"stream 0x55c{entry.rank:x}"
    )
