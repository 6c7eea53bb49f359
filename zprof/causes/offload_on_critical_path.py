"""ZP505: shards are copied to host memory and back without overlapping compute.

Signs: exposed copies between host and device of 1 MiB or more, in both directions in a step (a batch only
goes in, a checkpoint only out), and an idle device while ``Optimizer.step`` launches nothing for a
millisecond or more: the optimizer runs on the CPU. On a CPU rank, the copies marked by an engine's ``::copy``
ranges; if a collective runs in the background, they are idle time in the ledger. Reported from 5 % of the
step (docs/thresholds.md). With the fix the states stay on the device: no copies, and no update on the CPU.
"""

import re
from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.analysis.time.host_calls import MAX_QUIET_NS
from zprof.analysis.time.host_time import (
    find_missing_host,
    has_device,
    mean_of_most_ranks,
    median_of_most_ranks,
    moves_state,
    rate_confidence,
)
from zprof.base.formatting import format_ns
from zprof.causes.cause import Cause, Signal
from zprof.causes.fix import Fix, is_on_cpu
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO, _SURE_STEP_RATIO = 0.05, 0.10
#: Minimum duration of copies that move state; a copy of some scalars takes microseconds.
_TO_HOST, _TO_DEVICE = re.compile(r"DtoH|DeviceToHost"), re.compile(r"HtoD|HostToDevice")
_LONG_COPY_NS = 100_000
#: Shares of the host update's time that an update on the device saves.
_HOST_UPDATE_RATIOS = (0.8, 1.0)
#: Keys of facts that the edit reads.
_COPIES, _COPIES_BESIDE = "exposed_copies_per_step", "copies_beside_collectives_per_step"

_TRAINER = 'TrainingArguments(fsdp="full_shard auto_wrap")  # without offload'
#: Pinned memory makes copies to a device faster; CPU ranks have none.
_PINNED = {"pinned_policy": "; or CPUOffloadPolicy(pin_memory=True)", "pinned": '"pin_memory": true, '}
_UNPINNED = dict.fromkeys(_PINNED, "")

CAUSE = Cause(
    id="ZP505",
    name="offload_on_critical_path",
    meaning="Shards travel to host memory and back with no compute beside them, or the CPU "
    "updates them meanwhile.",
    terms=("exposed_memcpy_ns", "idle_ns", "exposed_transfer_ns"),
    sentence="copies to and from host memory take {copies:ns} {of_each_step} without overlapping compute"
    "{optimizer} ({share:.0%})",
    evidence={
        _COPIES: ("exposed copies between host and device {per_step}", Unit.NS),
        _COPIES_BESIDE: ("copies that overlap only a collective, {per_step}", Unit.NS),
        "idle_in_cpu_optimizer_per_step": ("idle time {per_step} while the CPU runs the optimizer", Unit.NS),
    },
    fix=Fix(
        forms={
            Engine.FSDP2: "fully_shard(module)  # no offload_policy$pinned_policy",
            Engine.FSDP1: "FullyShardedDataParallel(model, cpu_offload=None)",
            Engine.DEEPSPEED: '"offload_optimizer": {"device": "cpu", $pinned"ratio": 0.3},\n'
            '"zero_force_ds_cpu_optimizer": true, "sub_group_size": 100000000  # or no offload at all',
            Engine.REFERENCE: "ActivationConfig(checkpoint=True, host=False)",
        },
        settings={
            (Framework.TRANSFORMERS, Engine.FSDP2): _TRAINER,
            (Framework.TRANSFORMERS, Engine.FSDP1): _TRAINER,
            (
                Framework.ACCELERATE,
                Engine.FSDP2,
            ): "FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=False)",
            (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(cpu_offload=False)",
            (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(cpu_offload=False)",
        },
    ),
    disprove="turn the offload off for one recording, with a smaller batch if memory is tight: if the "
    "step time per sample does not drop, the copies were not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the step waits for copies to and from the host."""
    if (missing := find_missing_host(analysis)) is not None:
        return missing
    if has_device(analysis) and not moves_state(analysis):
        return None
    copies_ns = mean_of_most_ranks(analysis, "host_copy_ns")
    background_ns = mean_of_most_ranks(analysis, "copy_ns")
    optimizer_ns = mean_of_most_ranks(analysis, "optimizer_ns")
    typical_ns = median_of_most_ranks(analysis, "host_copy_ns", "optimizer_ns")
    share = (copies_ns + optimizer_ns) / mean_wall_ns(analysis)
    if min(copies_ns + optimizer_ns, typical_ns) < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    optimizer = f", and the optimizer on the CPU takes {format_ns(optimizer_ns)}" if optimizer_ns else ""
    return Signal(
        confidence=rate_confidence(analysis, share, _SURE_STEP_RATIO, _MIN_STEP_RATIO),
        words={"copies": copies_ns, "optimizer": optimizer, "share": share},
        facts=[
            make_fact(_COPIES, copies_ns),
            make_fact(_COPIES_BESIDE, background_ns),
            make_fact("idle_in_cpu_optimizer_per_step", optimizer_ns),
            make_fact("share_of_step", share),
        ],
        lost_ns=copies_ns
        + optimizer_ns
        + background_ns
        + mean_of_most_ranks(analysis, "optimizer_exposed_ns"),
        numbers=_UNPINNED if is_on_cpu(analysis) else _PINNED,
    )


@CAUSE.edit
def keep_states_on_device(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Drop long copies to and from the host, and all or most of the host's compute between them.

    The update on a device takes time as well, but was not recorded. On CPU ranks copies are part of the
    thread's work between its calls, or idle time while a collective runs.
    """
    if not graph.has_kernels:
        known = {entry.key: entry.value for entry in finding.evidence}
        return [edits.shorten_own_work(graph, known[_COPIES] + known[_COPIES_BESIDE])]
    resident = edits.scale_work(
        graph, lambda rank: np.where(_are_copies(rank, _TO_HOST) | _are_copies(rank, _TO_DEVICE), 0.0, 1.0)
    )
    update_ns = {rank.tasks.rank: _measure_host_update_ns(rank) for rank in graph.ranks}
    return [
        edits.shorten_gaps(resident, {rank: ratio * each for rank, each in update_ns.items()})
        for ratio in _HOST_UPDATE_RATIOS
    ]


def _are_copies(rank: RankGraph, pattern: re.Pattern[str]) -> Bools:
    return rank.tasks.kernel.match(pattern.search) & (rank.work_ns >= _LONG_COPY_NS)


def _measure_host_update_ns(rank: RankGraph) -> Floats:
    """Return the long gaps after a copy to the host and before the next one to the device."""
    places = np.arange(len(rank.tasks))
    goes_in = _are_copies(rank, _TO_DEVICE)
    last_out = np.maximum.accumulate(np.where(_are_copies(rank, _TO_HOST), places, NONE))
    last_in = np.maximum.accumulate(np.where(goes_in, places, NONE))
    follows = np.flatnonzero(goes_in)
    comes_back = places <= (follows[-1] if len(follows) else NONE)
    is_update = comes_back & (np.append(NONE, last_out[:-1]) > np.append(NONE, last_in[:-1]))
    return np.where(is_update & (rank.gap_ns >= MAX_QUIET_NS), rank.gap_ns, 0.0)
