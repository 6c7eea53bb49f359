"""What the time side could not see of a rank, or of all of them."""

from collections.abc import Mapping, Sequence

from zprof.model.gaps import Gap
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run

_RECORD_DEVICE = (
    "record with the activity of the device on (ProfilerActivity.CUDA), and check that it may be read"
)


def missing_rank(run: Run, rank: int, absent: Sequence[str]) -> list[Gap]:
    """A rank without a time window; a snapshot has none, and nothing that its owner can do adds one."""
    if run.manifest.source == "snapshot":
        return []
    reason = (
        f"no time window was recorded (no table {', '.join(absent)})"
        if absent
        else "no step of a time window ended"
    )
    remedy = "let the program run into the time window, or make the earlier ones shorter (--memory-steps, "
    return [Gap(what="time", rank=rank, reason=reason, remedy=f"{remedy}zprof.steps)")]


def missing_steps(run: Run, rank: int, found: int, policy: WindowPolicy) -> list[Gap]:
    """Steps that the recorder counted, and whose marks are not there."""
    wanted = len(run.rank_manifests[rank].time_steps)
    if policy is WindowPolicy.TRACE or found == wanted:
        return []
    reason = f"{wanted - found} of {wanted} steps lack their begin or end"
    return [Gap(what="steps", rank=rank, reason=reason, remedy="record again")]


def unknown_steps(rank: int, steps: Sequence[int]) -> list[Gap]:
    """Steps that launched kernels of which the trace holds nothing: what the device did then is not known."""
    if not steps:
        return []
    named = ", ".join(str(step) for step in steps[:8]) + (" …" if len(steps) > 8 else "")
    reason = (
        f"the recording or its file ends before kernels that step {named} launched: "
        "what the device did then is not known, and the step is left out"
    )
    remedy = "let the device finish before the window closes (prof.step() once more), and copy the whole file"
    return [Gap(what="steps", rank=rank, reason=reason, remedy=remedy)]


def unequal_steps(steps: Mapping[int, Sequence[int]]) -> list[Gap]:
    """Ranks whose windows are of different steps: each is measured over its own."""
    common = set.intersection(*map(set, steps.values())) if steps else set()
    odd = [rank for rank, mine in steps.items() if set(mine) != common]
    if not odd:
        return []
    reason = (
        f"{len(odd)} of {len(steps)} ranks have steps that others do not have: "
        f"all have {len(common)} in common, and each is measured over its own"
    )
    return [Gap(what="steps", reason=reason, remedy="record the same steps on all ranks")]


def no_work(rank: int) -> Gap:
    """A rank that has a device, of which the trace shows no work."""
    reason = "no GPU work in the trace, though this rank used a GPU: nothing is said of its time"
    return Gap(what="GPU work", rank=rank, reason=reason, remedy=_RECORD_DEVICE)


def no_collectives(ranks: Sequence[int], silent: Sequence[int], world_size: int) -> list[Gap]:
    """Ranks of a job of several in whose window nothing communicates."""
    if world_size <= 1 or not silent:
        return []
    remedy = "measure a window in which the ranks communicate; --window trace looks at all of the trace"
    if len(silent) == len(ranks):
        return [Gap(what="collectives", reason="no collectives found in the window", remedy=remedy)]
    return [
        Gap(what="collectives", rank=rank, reason="no collectives found in its window", remedy=remedy)
        for rank in silent
    ]


def not_split(exposed_ns: int, unsplit_ns: int) -> list[Gap]:
    """Exposed communication of which nobody can say how much of it is waiting.

    Args:
        exposed_ns: All of it.
        unsplit_ns: That in collectives of which not all ranks were seen, or could be matched.
    """
    if 100 * unsplit_ns <= exposed_ns:
        return []
    reason = (
        f"{unsplit_ns / exposed_ns:.0%} of the exposed communication lies in collectives of which not all "
        "ranks could be compared: there waiting for a late rank and moving bytes are not told apart, and "
        "exposed wait is the least, exposed transfer the most that it can be"
    )
    remedy = "give the traces of all ranks, recorded by a torch that writes their groups (2.4 or newer)"
    return [Gap(what="exposed wait", reason=reason, remedy=remedy)]
