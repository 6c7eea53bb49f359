"""Find the forward and backward computations of a pipeline's rank: runs of kernels between messages.

Kernels of a phase that were launched one after another are one pass; the launch of a message to or from
another stage ends it. Recomputation belongs to its backward pass. What follows the last backward pass of a
step is not a forward pass: norms of gradients, metrics.
"""

import numpy as np

from zprof.analysis.columns import Columns, Texts
from zprof.analysis.time.passes import is_move_name, read_launch_times
from zprof.analysis.time.steps import locate_instants
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.collectives import CollectiveKind
from zprof.model.training import Phase

#: ``phase``: forward, backward or optimizer; from the start of the first kernel to the end of the last.
COMPUTE_PASS_COLUMNS = ("rank", "step", "phase", "launched_ns", "start_ns", "end_ns")
NO_COMPUTE_PASSES = Columns(
    {name: Texts.of(()) if name == "phase" else np.zeros(0, dtype=np.int64) for name in COMPUTE_PASS_COLUMNS}
)
_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def make_compute_passes(timeline: RankTimeline, collectives: Columns) -> Columns:
    """Return the passes of a rank in the order of their launch; empty without messages between ranks.

    Args:
        timeline: The rank, on the common clock.
        collectives: Its rows, on the common clock.
    """
    is_message = collectives.texts("kind").equals(CollectiveKind.SEND.value, CollectiveKind.RECV.value)
    work = timeline.activity.named
    if not is_message.any() or not len(work):
        return NO_COMPUTE_PASSES
    moves = np.array([is_move_name(name) for name in work.names], dtype=np.bool_)
    kernels = work.times[~work.copies & ~work.memcpy & ~moves[work.code]]
    steps = timeline.host_steps
    step = steps.step_at(kernels[:, 0])
    kernels, step = kernels[step >= 0], step[step >= 0]
    if not len(kernels):
        return NO_COMPUTE_PASSES
    spans = steps.spans[np.searchsorted(steps.begin_ns, kernels[:, 0], side="right") - 1]
    phases = Texts.of(locate_instants(timeline.evidence, kernels[:, 0], spans)[0])
    phases = phases.with_text(phases.equals(Phase.RECOMPUTE), Phase.BACKWARD.value)
    messages = np.sort(read_launch_times(collectives.at(is_message)))
    before = np.searchsorted(messages, kernels[:, 0], side="right")
    begins = np.ones(len(kernels), dtype=np.bool_)
    begins[1:] = (np.diff(phases.codes) != 0) | (np.diff(before) > 0) | (np.diff(step) != 0)
    first = np.flatnonzero(begins)
    passes = Columns(
        {
            "rank": np.full(len(first), timeline.rank, dtype=np.int64),
            "step": step[first],
            "phase": phases.at(first),
            "launched_ns": kernels[first, 0],
            "start_ns": np.minimum.reduceat(kernels[:, 1], first),
            "end_ns": np.maximum.reduceat(kernels[:, 2], first),
        }
    )
    passes = passes.at(passes.texts("phase").equals(*_PHASES))
    by_step = passes.group_by("step")
    is_backward, place = passes.texts("phase").equals(Phase.BACKWARD), np.arange(len(passes))
    is_after = place > by_step.max(np.where(is_backward, place, -1))[by_step.codes]
    return passes.at(~(is_after & passes.texts("phase").equals(Phase.FORWARD))).renumber()
