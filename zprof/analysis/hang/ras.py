"""What NCCL's RAS adds to the judgement of a job: failed processes, and whether the ranks go on.

RAS counts the operations that a host has launched, at a slightly different time on each rank. In a running
job the counts differ, too, so only an answer that is the same some time later shows that ranks are stuck.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangStatus, ProcessState, RankAtHang, RankProcess
from zprof.run.log_evidence import LogEvidence, RankHealth

#: NCCL reports it on ranks whose peer has failed.
_OF_VICTIMS = frozenset({"Remote process error"})


def list_failed(evidence: LogEvidence) -> Iterator[RankAtHang]:
    """Yield the ranks whose process does not answer; else those that report an error of their own."""
    unreachable = [health for health in evidence.health if health.is_unreachable]
    own = [health for health in evidence.health if health.error and health.error not in _OF_VICTIMS]
    for health in unreachable or own:
        state = ProcessState.UNREACHABLE if health.is_unreachable else None
        yield RankAtHang(
            rank=health.rank,
            operation=0,
            process=None if health.process < 0 else _make_process(health, state),
            error=health.error,
        )


def settle(hang: Hang, evidence: LogEvidence) -> Hang:
    """Return the hang as the answers of RAS leave it: stuck, running, or unknown from one answer alone."""
    if not evidence.ras_reports:
        return hang
    hang = replace(hang, ras_reports=evidence.ras_reports)
    if not evidence.has_logged and evidence.is_moving:
        return Hang(
            status=HangStatus.RUNNING,
            logs=hang.logs,
            ras_reports=hang.ras_reports,
            ranks_seen=hang.ranks_seen,
        )
    processes = {each.rank: _make_process(each, None) for each in evidence.health if each.process >= 0}
    culprits = tuple(
        each if each.process is not None else replace(each, process=processes.get(each.rank))
        for each in hang.culprits
    )
    hang = replace(hang, culprits=culprits)
    if any(each.has_failed for each in culprits) or (evidence.ras_reports > 1 and hang.operations):
        return hang
    hang = replace(hang, confidence=Confidence.LOW)
    return hang if evidence.has_logged else replace(hang, status=HangStatus.UNKNOWN)


def _make_process(health: RankHealth, state: ProcessState | None) -> RankProcess:
    return RankProcess(number=health.process, host=health.host, state=state)
