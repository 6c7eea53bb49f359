"""Lines about stuck collectives in the forms of several releases of torch and of NCCL."""

HEADS = {
    "2.1": "[E ProcessGroupNCCL.cpp:474] ",
    "2.2": "[rank{rank}]:[E ProcessGroupNCCL.cpp:563] ",
    "2.4": "[rank{rank}]:[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632] ",
}
TIMEOUT = (
    "[Rank {inner}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={kind}, "
    "NumelIn={inputs}, NumelOut={outputs}, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
)
#: The group and its counters, by the first release that writes so.
COUNTERS = {
    "2.3": "[PG {id} Rank {inner}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {enqueued}, "
    "last completed NCCL work: {completed}.",
    "2.4": "[PG {name} (tp) Rank {inner}] Exception (either an error or timeout) detected by watchdog at "
    "work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.5": "[PG ID {id} PG GUID {name}(tp) Rank {inner}] Exception (either an error or timeout) detected by "
    "watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.6": "[PG ID {id} PG GUID {name}(tp) Rank {inner}]  failure detected by watchdog at work sequence id: "
    "{seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}",
    "2.6, no description": "[PG ID {id} PG GUID {name} Rank {inner}]  failure detected by watchdog at work "
    "sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}",
    "2.13": "[PG ID {id} PG GUID {name}(tp) Rank {inner}]  failure detected by watchdog at work sequence "
    "id: {seq} PG status: last enqueued work: {enqueued}, last started work: -1, "
    "last completed work: {completed}",
}
SIGNALS = {
    "2.4": "[PG 0 (default_pg) Rank {rank}] Received a global dump signal from rank {source}, and will start "
    "to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.5": "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout "
    "from  rank {source} and we will try our best to dump the debug info. Last enqueued NCCL work: "
    "{enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages of "
    "collectives, e.g., wrong sizes used across ranks. ",
}
STACK = (
    "Stack trace of the failed collective: \n#0 all_reduce from /torch/distributed/distributed_c10d.py:3174\n"
    "#1 train_step from /home/user/train.py:77\n"
)
ENDING = """============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-10_03:05:11
  host      : node7
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 2608408)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 2608408
============================================================
"""


def write_timeout(
    rank: int,
    seq: int,
    *,
    inner: int | None = None,
    kind: str = "ALLREDUCE",
    inputs: int = 64,
    outputs: int = 64,
    head: str = "2.4",
) -> str:
    """Return the line of a rank whose watchdog timed out."""
    values = {"rank": rank, "inner": rank if inner is None else inner, "seq": seq}
    values |= {"inputs": inputs, "outputs": outputs}
    return (HEADS[head] + TIMEOUT).format(**values, kind=kind) + "\n"


def write_counters(
    rank: int,
    seq: int,
    enqueued: int,
    completed: int,
    *,
    inner: int | None = None,
    name: str = "37",
    form: str = "2.6",
    head: str = "2.4",
) -> str:
    """Return the line of a rank on its group."""
    values = {"rank": rank, "inner": rank if inner is None else inner, "seq": seq, "id": 2}
    values |= {"enqueued": enqueued, "completed": completed}
    return (HEADS[head] + COUNTERS[form]).format(**values, name=name) + "\n"


def write_signal(rank: int, source: int, enqueued: int, completed: int, *, form: str = "2.5") -> str:
    """Return the line of a rank that answers another's dump signal."""
    values = {"rank": rank, "source": source, "enqueued": enqueued, "completed": completed}
    return (HEADS["2.4"] + SIGNALS[form]).format(**values) + "\n"


def write_default(rank: int, seq: int, enqueued: int | None = None, **timeout: object) -> str:
    """Return both lines of a rank that stands in an operation of the default group."""
    counters = write_counters(rank, seq, enqueued or seq, seq - 1, name="0").replace("(tp)", "(default_pg)")
    return write_timeout(rank, seq, **timeout) + counters  # type: ignore[arg-type]
