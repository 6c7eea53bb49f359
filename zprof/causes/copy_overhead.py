"""ZP507: copies around collectives delay the compute.

FSDP2 gathers into one buffer and copies each parameter out of it (``split_with_sizes_copy``), and copies
gradients into one before it reduces them (``chunk_cat``). The cost is the time of these kernels, and of those
launched within ``FSDP::all_gather_copy_in`` and ``..._out``, during which nothing else computes. Copies of
needless gathers (ZP412 to ZP415) do not count: they disappear with the gathers. Reported above 3 % of the
step (chosen), or if a replay of the step shows a cost of 1 %.

FSDP2 needs these copies. Confidence is high if copies out move fewer bytes per second than copies in. If
``chunk_cat`` is no faster, or takes most of the time, the cost is usual, or due to padding of shapes that do
not divide evenly (ZP417): low confidence. It is medium if the bytes of either copy are unknown.

With the fix there are no copies, as if parameters were views of a flat unit.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    can_play_kernels,
    find_missing_collectives,
    list_copy_names,
    make_fact,
    mean_per_step,
    mean_wall_ns,
    select_copy_kernels,
)
from zprof.analysis.time.kernel_comparison import measure_copies, measure_copy_speed_ratio
from zprof.analysis.time.needless_collectives import MIN_PLAYED_RATIO
from zprof.base.formatting import printable
from zprof.causes.cause import Cause, Sign, Signal
from zprof.causes.fix import Fix
from zprof.model.communication_kernels import parse_function_name
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.rank_times import LAUNCH_LEFT_RATIOS
from zprof.step.tasks import NONE, Bools, Graph, RankGraph

_MIN_STEP_RATIO = 0.03
_MIN_COPIES = 3
#: Copies in cost about as much as copies out (0.53 to 0.63 of both in healthy FSDP2 programs on CPU ranks).
#: If copies in take most of the time, copies out of gathers are not slower than usual.
_MAX_COPY_IN_RATIO = 1 / 2
#: A copy out reads and writes 2 bytes of a 16-bit parameter; ``chunk_cat`` reads 2 and writes 2 or 4. So
#: copies out are 0.75 to 1.0 times as fast as copies in, by bytes of the message, at memory bandwidth.
_MIN_USUAL_RATE_RATIO = 0.6
_MAX_NAME = 80
#: Key of the fact that the edit reads.
_EXPOSED_COPIES = "exposed_copies_per_step"

CAUSE = Cause(
    id="ZP507",
    name="copy_overhead",
    meaning="Copies around collectives hold the compute up.",
    terms=("compute_ns", "exposed_memcpy_ns"),
    sign=Sign.COPIES,
    is_priced_by_step=True,
    sentence="copies around collectives take {lost:ns} {per_step} ({share:percent}), mostly {name}",
    evidence={
        _EXPOSED_COPIES: ("exposed copies around collectives {per_step}", Unit.NS),
        "copy_time_per_step": ("all copies around collectives {per_step}", Unit.NS),
        "copies_per_step": ("copies {per_step}", Unit.COUNT),
        "largest_copy_per_step": ("the largest kind of copy, {per_step}", Unit.NS),
        "gathered_bytes_per_step": ("gathered {per_step}", Unit.BYTES),
        "gathered_bytes_per_copy_second": ("gathered bytes per second of copying", Unit.BYTES_PER_S),
    },
    fix=Fix(
        forms={
            Engine.FSDP2: "fully_shard(block)  # without shard_placement_fn: any dimension but the first "
            "is copied "
            "twice\n"
            "fully_shard(block, reshard_after_forward=False)  # one gather, one copy per step; costs memory\n"
            "one dtype and few, large parameters per unit: fuse q, k and v",
            Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "contiguous_gradients": true,\n'
            '                      "stage3_prefetch_bucket_size": $gather_elements}',
        },
        settings={
            (
                Framework.TRANSFORMERS,
                Engine.FSDP2,
            ): 'TrainingArguments(fsdp_config={"reshard_after_forward": False})  # one copy per step',
            (Framework.ACCELERATE, Engine.FSDP2): "FullyShardedDataParallelPlugin(fsdp_version=2, "
            "reshard_after_forward=False)  # one copy per step",
        },
        general="fewer and larger messages: one dtype and few, large parameters per unit or bucket",
    ),
    disprove="copy a buffer of one unit's size with torch.split_with_sizes_copy in chunks of the same "
    "sizes: if that is as slow by itself, the shapes are the cause; if it is fast, concurrent work is",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if copies around collectives take much of the step."""
    if (missing := find_missing_collectives(analysis)) is not None:
        return missing
    if not len(analysis.kernels):
        return None
    rows = select_copy_kernels(analysis)
    min_ratio = MIN_PLAYED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    min_cost_ns = min_ratio * mean_wall_ns(analysis)
    exposed_ns = mean_per_step(analysis, float(rows.ints("uncovered_ns").sum()))
    if rows.ints("count").sum() < _MIN_COPIES or exposed_ns <= min_cost_ns:
        return None
    copies = measure_copies(analysis)
    cost_ns = copies.exposed_ns
    if cost_ns <= min_cost_ns:
        return None
    name = printable(parse_function_name(copies.largest_name) or copies.largest_name)[:_MAX_NAME]
    is_mostly_in = copies.into_ns > _MAX_COPY_IN_RATIO * cost_ns
    return Signal(
        confidence=Confidence.LOW if is_mostly_in else _rate_by_speed(analysis),
        words={"lost": cost_ns, "share": cost_ns / mean_wall_ns(analysis), "name": name},
        facts=[
            make_fact(_EXPOSED_COPIES, cost_ns),
            make_fact("copy_time_per_step", copies.total_ns),
            make_fact("copies_per_step", copies.count),
            make_fact("largest_copy_per_step", copies.largest_ns),
            make_fact("gathered_bytes_per_step", copies.gathered_bytes),
            make_fact("gathered_bytes_per_copy_second", copies.gathered_bytes * 1e9 / cost_ns),
        ],
        lost_ns=cost_ns,
    )


def _rate_by_speed(analysis: RunAnalysis) -> Confidence:
    """Return high confidence if copies out of gathers are clearly slower than copies into reductions."""
    ratio = measure_copy_speed_ratio(analysis)
    if ratio is None:
        return Confidence.MEDIUM
    return Confidence.LOW if ratio >= _MIN_USUAL_RATE_RATIO else Confidence.HIGH


@CAUSE.edit
def drop_copies(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Drop the copies with half, and with all, of their launch cost: parameters become views.

    The kernels that copy into a gather's buffer have generic names; they are recognized by their place before
    the gather. On CPU ranks they are part of the thread's work between its calls.
    """
    if not graph.has_kernels:
        known = {entry.key: entry.value for entry in finding.evidence}
        return [edits.shorten_own_work(graph, known[_EXPOSED_COPIES])]
    names = list_copy_names(analysis)

    def are_copies(rank: RankGraph) -> Bools:
        are_copies = rank.tasks.kernel.match(names.__contains__)
        are_copies[rank.copy_in[rank.copy_in != NONE]] = True
        return are_copies

    idle = edits.scale_work(graph, lambda rank: np.where(are_copies(rank), 0.0, 1.0))
    return [edits.scale_host(idle, left, are_copies) for left in LAUNCH_LEFT_RATIOS]


@CAUSE.doubt
def is_usual_cost(analysis: RunAnalysis) -> bool:
    """Return True: copies of usual speed are needed, regardless of their cost."""
    return True
