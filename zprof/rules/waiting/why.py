"""Why a rank is late, in words, and what to do about each reason.

The ledger of the late rank says what it has more of than the others: compute, copies or idle time.  Idle
time is the host's doing; which of its calls took it the reasons of the collectives say, to which it came
last (:mod:`zprof.analysis.time.blame`).
"""

from collections.abc import Mapping

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LateReason

#: What the host can be busy with, as far as its calls show it.
_CALLS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MOST = 0.5

SAYS: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "its compute takes longer",
    LateReason.MEMCPY: "its copies take longer",
    LateReason.DATA: "its data comes late",
    LateReason.ALLOCATOR: "its allocator holds it up",
    LateReason.SYNC: "its host waits for the device",
    LateReason.HOST: "its host stalls",
}

FIXES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "compare its device with a healthy rank's: clocks, temperature, power cap, ECC\n"
    "  nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE,ECC\n"
    "more or larger operators there, not slower ones: give ranks equal tokens, not equal samples",
    LateReason.MEMCPY: "look at its PCIe link (width, generation), and pin the host memory\n"
    "  DataLoader(..., pin_memory=True); tensor.to(device, non_blocking=True)",
    LateReason.DATA: "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True, "
    "pin_memory=True)\nlook at that rank's storage, and at what only it does per batch",
    LateReason.ALLOCATOR: "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "no torch.cuda.empty_cache() in the loop; that rank has less memory to spare than the others",
    LateReason.SYNC: "no .item(), .cpu(), print(tensor) in the step of that rank alone (logging of rank 0)\n"
    "  if step % 100 == 0: log(loss.detach())",
    LateReason.HOST: "look at what only its host does: other processes on its cores, CPU clocks, logging, "
    "checkpoints\n  numactl --cpunodebind=N --membind=N python train.py",
}

DISPROVES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "swap the devices of this rank and another and record again: what stays with the "
    "device is the device, what moves with the rank is its work",
    LateReason.DATA: "train on one batch kept in memory and record again: if the rank is late all the same, "
    "it is not its data",
}
_DISPROVE = (
    "move this rank to another host and record again: what stays with the host is the host, what moves with "
    "the rank is its program"
)


def disprove_of(reason: LateReason) -> str:
    """One experiment."""
    return DISPROVES.get(reason, _DISPROVE)


def reason_of(
    analysis: RunAnalysis, late: tuple[int, ...], *, compute_ns: float, copies_ns: float, idle_ns: float
) -> LateReason:
    """The reason that explains most of a delay.

    Args:
        analysis: Whose collectives say what the host did.
        late: The late ranks.
        compute_ns, copies_ns, idle_ns: What these have more of than the others.
    """
    shares = _reasons(analysis.collectives, late)
    called = max(_CALLS, key=lambda call: shares.get(call, 0.0))
    explained = shares.get(called, 0.0) >= _MOST
    if idle_ns >= max(compute_ns, copies_ns):
        return called if explained else LateReason.HOST
    if called is LateReason.DATA and explained:
        return called  # a loader on the main thread computes too
    return LateReason.COMPUTE if compute_ns >= copies_ns else LateReason.MEMCPY


def _reasons(rows: pd.DataFrame, late: tuple[int, ...]) -> dict[str, float]:
    """Shares of the waiting for these ranks by why they were late, where the delay began on them."""
    mine = rows[rows["blamed_rank"].isin(late) & rows["origin_rank"].isin(late)]
    sums = mine.groupby("late_reason", observed=True)["wait_ns"].sum()
    total = float(sums.sum())
    return {str(reason): float(value) / total for reason, value in sums.items()} if total > 0 else {}
