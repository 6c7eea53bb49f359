"""ZP507 copy_overhead: copies around collectives delay the compute.

FSDP2 gathers into one buffer and copies each parameter out of it (``split_with_sizes_copy``), and copies
gradients into one before it reduces them (``chunk_cat``). The cost is the time of these kernels, and of those
launched within ``FSDP::all_gather_copy_in`` and ``..._out``, during which nothing else computes. Copies of
needless gathers (ZP412 to ZP415) do not count: they disappear with the gathers. Reported above 3 % of the
step (chosen), or if a replay of the step shows a cost of 1 %.

FSDP2 cannot do without these copies. Confidence is high if copies out move fewer bytes per second than copies
in. If ``chunk_cat`` is no faster, or takes most of the time, the cost is the usual one, or padding of shapes
that do not divide evenly (ZP417): low confidence. It is medium if the bytes of either are unknown.

With the fix there are no copies, as if parameters were views of a flat unit.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Mask
from zprof.analysis.per_step import (
    GRADIENT_COPY_KERNEL,
    can_play_kernels,
    has_no_collectives,
    mean_per_step,
    mean_wall_ns,
    select_copy_kernels,
)
from zprof.analysis.time.collective_rows import select_kind
from zprof.analysis.time.transfer.needless_collectives import MIN_PLAYED_RATIO
from zprof.analysis.time.transfer.repeated_gathers import select_needless_gathers
from zprof.causes.fix import Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent, printable
from zprof.model.gaps import Gap
from zprof.model.kernels import parse_function_name
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

_MIN_STEP_RATIO = 0.03
_MIN_COPIES = 3
#: Copies in cost about as much as copies out (0.53 to 0.63 of both in healthy FSDP2 programs on CPU ranks).
#: If copies in are most of the time, copies out of gathers are not slower than usual.
_MAX_COPY_IN_RATIO = 1 / 2
#: A copy out reads and writes 2 bytes of a 16-bit parameter; ``chunk_cat`` reads 2 and writes 2 or 4. So
#: copies out are 0.75 to 1.0 times as fast as copies in, by bytes of the message, at memory bandwidth.
_MIN_USUAL_RATE_RATIO = 0.6

_FIXES = Fix(
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
)


def copy_overhead(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if copies around collectives take much of the step."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.COPY_OVERHEAD, "no collective was recorded", "record the time window")
    if not len(analysis.kernels):
        return None
    rows = select_copy_kernels(analysis)
    min_ratio = MIN_PLAYED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    cost, min_cost = (
        mean_per_step(analysis, float(rows.ints("uncovered_ns").sum())),
        min_ratio * mean_wall_ns(analysis),
    )
    if rows.ints("count").sum() < _MIN_COPIES or cost <= min_cost:
        return None
    cost -= _estimate_needless_copies_ns(analysis)
    return _build_finding(analysis, cost) if cost > min_cost else None


def _estimate_needless_copies_ns(analysis: RunAnalysis) -> float:
    """Estimate the time per rank and step to copy needless gathers out, by their share of the bytes."""
    rows = select_copy_kernels(analysis)
    out = rows.at(~_copies_gradients(rows))
    needless_bytes, total_bytes = (
        float(select_kind(each, CollectiveKind.ALL_GATHER).ints("bytes").sum())
        for each in (select_needless_gathers(analysis), analysis.collectives)
    )
    if not total_bytes:
        return 0.0
    return mean_per_step(analysis, float(out.ints("uncovered_ns").sum())) * needless_bytes / total_bytes


def _build_finding(analysis: RunAnalysis, cost: float) -> Finding:
    basis = analysis.time.basis
    rows = select_copy_kernels(analysis)
    names, uncovered_ns = rows.group_by("name"), rows.ints("uncovered_ns")
    time_by_name = names.sum(uncovered_ns)
    largest = rows.texts("name")[names.first[time_by_name.argmax()]]
    name = printable(parse_function_name(largest) or largest)[:80]
    copy_in_ns = mean_per_step(analysis, float(uncovered_ns[_copies_gradients(rows)].sum()))
    count = mean_per_step(analysis, float(rows.ints("count").sum()))
    gathers = select_kind(analysis.collectives, CollectiveKind.ALL_GATHER)
    moved = mean_per_step(analysis, float(gathers.ints("bytes").sum()))
    return make_finding(
        analysis,
        Cause.COPY_OVERHEAD,
        sentence=f"copies around collectives take {format_ns(cost)} {basis} "
        f"({format_percent(cost / mean_wall_ns(analysis))}), mostly {name}",
        evidence=[
            make_fact("exposed_copies_per_step/collectives", cost),
            make_fact("copy_time_per_step", mean_per_step(analysis, float(rows.ints("total_ns").sum()))),
            make_fact("copies_per_step", count),
            make_fact("largest_copy_per_step", mean_per_step(analysis, time_by_name.max())),
            make_fact("gathered_bytes_per_step", moved),
            make_fact("gathered_bytes_per_copy_second", moved * 1e9 / cost),
        ],
        saving_ns=(0.0, cost),
        severity=rate_severity(cost, mean_wall_ns(analysis)),
        confidence=Confidence.LOW if copy_in_ns > _MAX_COPY_IN_RATIO * cost else _rate_by_speed(analysis),
        fix=choose_fix(analysis, _FIXES),
        disprove="copy a buffer of one unit's size with torch.split_with_sizes_copy in chunks of the same "
        "sizes: if that is as slow by itself, the shapes are the cause; if it is fast, concurrent work is",
    )


def _copies_gradients(rows: Columns) -> Mask:
    return rows.texts("name").match(lambda name: GRADIENT_COPY_KERNEL in name)


def _rate_by_speed(analysis: RunAnalysis) -> Confidence:
    """Return high confidence if copies out of gathers are clearly slower than copies into reductions."""
    rows = select_copy_kernels(analysis)
    into, total_ns = _copies_gradients(rows), rows.ints("total_ns")
    in_ns, out_ns = (float(total_ns[chosen].sum()) for chosen in (into, ~into))
    gathered, reduced = (
        float(select_kind(analysis.collectives, kind).ints("bytes").sum())
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    )
    if min(in_ns, out_ns, gathered, reduced) <= 0:
        return Confidence.MEDIUM
    is_usual = gathered / out_ns >= _MIN_USUAL_RATE_RATIO * reduced / in_ns
    return Confidence.LOW if is_usual else Confidence.HIGH
