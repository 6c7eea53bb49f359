"""ZP601 to ZP609: why a job does not go on, one cause per class of hang.

The analysis has found the class and the ranks (``zprof.analysis.hang``); here they get their evidence, the
next step and the way to disprove it.
"""

from collections.abc import Iterator, Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.formatting import printable
from zprof.model.hang import Hang, HangClass, is_stuck
from zprof.model.hang_text import (
    describe_hang,
    describe_location,
    format_line,
    list_stopped,
    name_entered,
    name_operation,
)
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import Rule, make_finding

_CAUSES: Mapping[HangClass, Cause] = {
    HangClass.NEVER_ENTERED: Cause.RANK_NEVER_ENTERED,
    HangClass.HOST_STUCK: Cause.HOST_STUCK,
    HangClass.DIFFERENT_COLLECTIVES: Cause.DIFFERENT_COLLECTIVES,
    HangClass.MISMATCHED: Cause.MISMATCHED_COLLECTIVE,
    HangClass.CIRCULAR_WAIT: Cause.CIRCULAR_WAIT,
    HangClass.DEVICE_STOPPED: Cause.DEVICE_STOPPED,
    HangClass.NOT_FINISHED: Cause.COLLECTIVE_NOT_FINISHED,
    HangClass.RANK_MISSING: Cause.RANK_WITHOUT_DUMP,
    HangClass.CANNOT_TELL: Cause.HANG_NOT_TOLD,
}
#: What to do next, where it does not depend on what is known of the ranks.
_FIXES: Mapping[HangClass, str] = {
    HangClass.NEVER_ENTERED: (
        "make the condition around the collective the same on all ranks: broadcast or all_reduce what it "
        "depends on\n(batches that run out, a loss that is not finite, an early stop on one rank)"
    ),
    HangClass.HOST_STUCK: (
        "py-spy dump --pid PID on that rank, several times: the line that stays is the one\n"
        "zprof record --watch 60 saves the stacks of all ranks before the job is killed"
    ),
    HangClass.DIFFERENT_COLLECTIVES: ("TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens"),
    HangClass.MISMATCHED: (
        "make shapes and dtypes equal on all ranks: pad the last batch, or gather the sizes first\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens"
    ),
    HangClass.DEVICE_STOPPED: (
        "look for Xid errors in dmesg and nvidia-smi -q on the host of that rank, then take the device out\n"
        "(its log may have an error that the other ranks' timeouts have covered)"
    ),
    HangClass.NOT_FINISHED: (
        "check the link: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=NET, the counters of the network cards\n"
        "nccl-tests over the same ranks shows if the link works at all"
    ),
    HangClass.RANK_MISSING: (
        "look for these ranks first: their logs, their hosts (out of memory, preempted)\n"
        "zprof doctor says if a rank would leave a dump"
    ),
    HangClass.CANNOT_TELL: (
        "keep the logs of all ranks: torchrun --log-dir logs -r 3\n"
        "have the next hang leave dumps: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    ),
}
_GLOO_FIXES: Mapping[HangClass, str] = {
    HangClass.NOT_FINISHED: (
        "check the link: GLOO_SOCKET_IFNAME names the interface, ping and iperf3 show if it works\n"
        "look at the hosts of the ranks that have not finished: out of memory, swapping, stopped"
    ),
    HangClass.CANNOT_TELL: (
        "keep the logs of all ranks: torchrun --log-dir logs -r 3\n"
        "py-spy dump --pid PID on each rank shows in which operation it stands"
    ),
}
#: What would show that the finding is wrong.
_DISPROOFS: Mapping[HangClass, str] = {
    HangClass.NEVER_ENTERED: (
        "print the step and the condition on all ranks before the collective: they are equal"
    ),
    HangClass.HOST_STUCK: (
        "the rank enters the collective when it is given more time: then it is slow, not stuck"
    ),
    HangClass.DIFFERENT_COLLECTIVES: ("TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch"),
    HangClass.MISMATCHED: ("TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch"),
    HangClass.CIRCULAR_WAIT: ("with the order fixed, the job still stops in these two collectives"),
    HangClass.DEVICE_STOPPED: ("after a restart on another device the job stops on the same rank again"),
    HangClass.NOT_FINISHED: ("nccl-tests over the same ranks finishes with the expected bandwidth"),
    HangClass.RANK_MISSING: ("with their dumps, the job waits for another rank"),
    HangClass.CANNOT_TELL: ("with the logs or dumps of all ranks it is told"),
}
_LOOK_FOR_RANKS = (
    "look for these ranks first: their logs, their hosts (out of memory, preempted)\n"
    "(the recording has nothing of them)"
)
#: Ranks that a fix names.
_MAX_RANKS = 4


def hang_rules() -> tuple[Rule, ...]:
    """Return one rule per class of hang."""
    return tuple(
        Rule(cause=cause, check=lambda analysis, baseline, kind=kind: _check(analysis, kind))
        for kind, cause in _CAUSES.items()
    )


def _check(analysis: RunAnalysis, kind: HangClass) -> Finding | None:
    """Return a finding if the job is stuck for this reason."""
    hang = analysis.hang
    if not is_stuck(hang) or hang.kind is not kind:
        return None
    return make_finding(
        analysis,
        _CAUSES[kind],
        sentence=describe_hang(hang),
        evidence=_list_evidence(hang),
        saving_ns=(0, 0),
        severity=Severity.HIGH if hang.confidence is not Confidence.LOW else Severity.MEDIUM,
        confidence=hang.confidence,
        fix=make_fix(hang, analysis.run.backend),
        disprove=_DISPROOFS[kind],
        location=next((each.location for each in hang.culprits if each.location is not None), None),
    )


def make_fix(hang: Hang, backend: str = "") -> str:
    """Return what to do next about a job that is stuck; never to record what this was found in.

    ``backend``: only NCCL has its own variables and dumps.
    """
    kind = hang.kind or HangClass.CANNOT_TELL
    if stopped := list_stopped(hang):
        lines = [
            f"rank {each.rank}: kill -CONT {each.process.number} on "
            f"{printable(each.process.host) or 'its host'}"
            for each in stopped[:_MAX_RANKS]
            if each.process is not None
        ]
        more = len(stopped) - _MAX_RANKS
        return "\n".join(
            [
                *lines,
                *([f"and {more} more ranks"] if more > 0 else []),
                "and find out what stopped it: a debugger, a scheduler that suspends jobs, Ctrl-Z",
            ]
        )
    if hang.is_swapped or kind is HangClass.CIRCULAR_WAIT:
        # The fix of an order that differs between ranks: which line is which.
        if hang.sides:
            entered = [(name_entered(side), side.location) for side in hang.sides[:2]]
        else:
            entered = [(name_operation(each), each.location) for each in hang.operations[:2]]
        named = [
            name if location is None else f"{name} ({format_line(location)})" for name, location in entered
        ]
        return (
            f"enter {' and '.join(named)} in the same order on all ranks\n"
            "(a branch that turns them round, threads, or hooks of a backward, that make the order a race)"
        )
    fix = _FIXES[kind]
    if kind is HangClass.DIFFERENT_COLLECTIVES:
        return f"{_compare_lines(hang)}\n{fix}"
    if kind is HangClass.NEVER_ENTERED:
        return "\n".join([fix, *_list_later_entries(hang)])
    if kind is HangClass.HOST_STUCK:
        return _find_line(hang)
    if kind is HangClass.RANK_MISSING and hang.stall_ns is not None:
        return _LOOK_FOR_RANKS
    return _GLOO_FIXES.get(kind, fix) if backend == "gloo" else fix


def _compare_lines(hang: Hang) -> str:
    lines = dict.fromkeys(format_line(side.location) for side in hang.sides if side.location is not None)
    which = " and ".join(list(lines)[:_MAX_RANKS]) if len(lines) > 1 else "what leads the ranks to it"
    return f"compare {which}: a branch, or a loop of another length, sends the ranks different ways"


def _list_later_entries(hang: Hang) -> Iterator[str]:
    """Yield what to do if a rank that left out an operation only enters it later than others."""
    if not hang.operations:
        return
    for culprit in hang.culprits[:1]:
        missed = name_operation(hang.operations[culprit.operation])
        own = next((each for each in hang.operations if culprit.rank in each.entered), None)
        instead = culprit.entered_instead or (name_operation(own) if own is not None else "")
        if instead:
            yield (
                f"if rank {culprit.rank} enters {missed} only after {instead}: enter both in the same order "
                "on all ranks"
            )


def _find_line(hang: Hang) -> str:
    """Return how to find the line at which a host stands, or what to do about it if it is known."""
    if hang.stall_ns is None:
        return _FIXES[HangClass.HOST_STUCK]
    lines = []
    for culprit in hang.culprits[:_MAX_RANKS]:
        process = culprit.process
        if culprit.location is not None:
            lines.append(
                f"rank {culprit.rank} stands at {describe_location(culprit.location)}: what it calls there "
                "does not return (a loop, a lock, a queue, a file); give it a timeout"
            )
        elif process is not None:
            lines.append(
                f"rank {culprit.rank}: py-spy dump --pid {process.number} on {printable(process.host)}, "
                "while it hangs: the line that stays is the one"
            )
        else:
            lines.append(f"rank {culprit.rank}: py-spy dump --pid PID, while it hangs")
    return "\n".join(lines)


def _list_evidence(hang: Hang) -> Sequence[Fact]:
    operation = hang.operations[0] if hang.operations else None
    known = (
        ("ranks_waiting", len(hang.victims)),
        ("ranks_late", len(operation.late) if operation else 0),
        ("ranks_entered", len(operation.entered) if operation else 0),
        ("ranks_finished", len(operation.finished) if operation else 0),
        ("stuck_operations", len(hang.operations)),
        ("ranks_without_dump", 0 if hang.logs else len(hang.ranks_missing)),
        ("ranks_without_lines", len(hang.ranks_missing) if hang.logs else 0),
        ("logs_read", hang.logs),
        ("stall", hang.stall_ns or 0),
    )
    return [make_fact(key, value) for key, value in known if value]
