"""ZP601 to ZP609: why a job does not go on, one cause per class of hang.

The analysis has found the class and the ranks (``zprof.analysis.hang``); here they get their evidence, the
next step and the way to disprove it.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.hang import Hang, HangClass, is_stuck
from zprof.model.hang_text import describe_hang
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
#: What to do next, and what would show that the finding is wrong.
_ADVICE: Mapping[HangClass, tuple[str, str]] = {
    HangClass.NEVER_ENTERED: (
        "make the condition around the collective the same on all ranks: broadcast or all_reduce what it "
        "depends on\n(batches that run out, a loss that is not finite, an early stop on one rank)",
        "print the step and the condition on all ranks before the collective: they are equal",
    ),
    HangClass.HOST_STUCK: (
        "py-spy dump --pid PID on that rank, several times: the line that stays is the one\n"
        "zprof record --watch 60 saves the stacks of all ranks before the job is killed",
        "the rank enters the collective when it is given more time: then it is slow, not stuck",
    ),
    HangClass.DIFFERENT_COLLECTIVES: (
        "compare the two lines: a branch, or a loop of another length, sends the ranks different ways\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch",
    ),
    HangClass.MISMATCHED: (
        "make shapes and dtypes equal on all ranks: pad the last batch, or gather the sizes first\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch",
    ),
    HangClass.CIRCULAR_WAIT: (
        "enter the collectives of both groups in the same order on all ranks\n"
        "(threads, or hooks of a backward, that launch collectives make the order a race)",
        "with the order fixed, the job still stops in these two collectives",
    ),
    HangClass.DEVICE_STOPPED: (
        "look for Xid errors in dmesg and nvidia-smi -q on the host of that rank, then take the device out\n"
        "(its log may have an error that the other ranks' timeouts have covered)",
        "after a restart on another device the job stops on the same rank again",
    ),
    HangClass.NOT_FINISHED: (
        "check the link: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=NET, the counters of the network cards\n"
        "nccl-tests over the same ranks shows if the link works at all",
        "nccl-tests over the same ranks finishes with the expected bandwidth",
    ),
    HangClass.RANK_MISSING: (
        "look for these ranks first: their logs, their hosts (out of memory, preempted)\n"
        "zprof doctor says if a rank would leave a dump",
        "with their dumps, the job waits for another rank",
    ),
    HangClass.CANNOT_TELL: (
        "keep the logs of all ranks: torchrun --log-dir logs -r 3\n"
        "have the next hang leave dumps: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        "with the logs or dumps of all ranks it is told",
    ),
}


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
    fix, disprove = _ADVICE[kind]
    return make_finding(
        analysis,
        _CAUSES[kind],
        sentence=describe_hang(hang),
        evidence=_list_evidence(hang),
        saving_ns=(0, 0),
        severity=Severity.HIGH if hang.confidence is not Confidence.LOW else Severity.MEDIUM,
        confidence=hang.confidence,
        fix=fix,
        disprove=disprove,
        location=next((each.location for each in hang.culprits if each.location is not None), None),
    )


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
