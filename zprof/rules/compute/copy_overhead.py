"""ZP507 copy_overhead: copies around collectives hold the compute up.

FSDP2 gathers into one buffer and copies each parameter out of it (``split_with_sizes_copy``), and copies
gradients into one before it reduces them (``chunk_cat``). What counts is the time of such kernels, and of
those launched within ``FSDP::all_gather_copy_in`` and ``..._out``, in which nothing else computes. Copies of
needless gathers (ZP412 to ZP415) do not count: they vanish with them. Reported above 3 % of the step (our
choice), or if a replay of the step says that they cost 1 % of it.

If most of it is ``chunk_cat``, copies out are as quick as copies in, and the cost is what FSDP2 always has,
or padding of shapes that do not divide (ZP417): low confidence.

If shards are not contiguous, data must be copied once, so the saving starts at half of it: a copy of
contiguous rows runs at the memory's speed, one of many narrow rows far below. If the step can be replayed,
the saving is the gain without these copies, as if parameters were views of a flat unit.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns, format_percent, printable
from zprof.model.gaps import Gap
from zprof.model.kernels import parse_function_name
from zprof.rules.rule import (
    GRADIENT_COPY_KERNEL,
    can_replay,
    choose_fix,
    copy_kernels,
    gather_copies_ns,
    has_no_collectives,
    make_finding,
    mean_per_step,
    rate_severity,
    select_kind,
    untested_gap,
    wall_ns,
)
from zprof.rules.volume.regathers import PROPOSED_RATIO, select_needless_gathers

_WORTH_RATIO = 0.03
_SURE_RATIO = 0.5
_MIN_COPIES = 3
#: Copies in cost about as much as copies out (0.53 to 0.63 of both in healthy FSDP2 programs on CPU ranks).
#: If they are most of it, copies out of gathers are no slower than usual.
_MOSTLY_RATIO = 1 / 2

_FIXES = {
    "FSDP2": "fully_shard(block)  # without shard_placement_fn: any dimension but the first is copied twice\n"
    "fully_shard(block, reshard_after_forward=False)  # one gather, one copy per step; costs memory\n"
    "one dtype and few, large parameters a unit: fuse q, k and v",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "contiguous_gradients": true,\n'
    '                      "stage3_prefetch_bucket_size": 50000000}',
    "reference": "none: a flat unit is gathered in place, and its parameters are views",
}


def copy_overhead(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if copies around collectives take much of the step."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.COPY_OVERHEAD, "no collective was recorded", "record the time window")
    if analysis.kernels.empty:
        return None
    rows = copy_kernels(analysis)
    worth = PROPOSED_RATIO if can_replay(analysis) else _WORTH_RATIO
    cost, least = mean_per_step(analysis, float(rows["uncovered_ns"].sum())), worth * wall_ns(analysis)
    if rows["count"].sum() < _MIN_COPIES or cost <= least:
        return None
    cost -= gather_copies_ns(analysis, select_needless_gathers(analysis))
    return _finding(analysis, cost) if cost > least else None


def _finding(analysis: RunAnalysis, cost: float) -> Finding:
    rows = copy_kernels(analysis)
    most = rows.groupby("name")["uncovered_ns"].sum()
    name = printable(parse_function_name(str(most.idxmax())) or str(most.idxmax()))[:80]
    into = mean_per_step(analysis, float(most[most.index.str.contains(GRADIENT_COPY_KERNEL)].sum()))
    count = mean_per_step(analysis, float(rows["count"].sum()))
    gathers = select_kind(analysis.collectives, CollectiveKind.ALL_GATHER)
    moved = mean_per_step(analysis, float(gathers["bytes"].sum()))
    return make_finding(
        Cause.COPY_OVERHEAD,
        sentence=f"copies around collectives take {format_ns(cost)} per step "
        f"({format_percent(cost / wall_ns(analysis))} of it), most of it {name}",
        evidence=[
            Evidence(
                key="exposed_copies_per_step",
                what="copies around collectives, nothing beside them per step",
                value=cost,
                unit="ns",
            ),
            Evidence(key="copies_per_step", what="of them per step", value=count, unit="count"),
            Evidence(
                key="largest_copy_per_step",
                what="the largest per step",
                value=mean_per_step(analysis, most.max()),
                unit="ns",
            ),
            Evidence(key="gathered_bytes_per_step", what="gathered per step", value=moved, unit="bytes"),
            Evidence(
                key="gathered_bytes_per_copy_second",
                what="gathered bytes a second of copying",
                value=moved * 1e9 / cost,
                unit="bytes_per_s",
            ),
        ],
        saving_ns=(_SURE_RATIO * cost, cost),
        severity=rate_severity(cost, wall_ns(analysis)),
        confidence=Confidence.LOW if into > _MOSTLY_RATIO * cost else Confidence.HIGH,
        fix=choose_fix(analysis.training.engine, _FIXES),
        disprove="copy a buffer of one unit's size with torch.split_with_sizes_copy in chunks of the same "
        "sizes: if that is as slow by itself, the shapes are the cause; if it is fast, what ran beside it is",
    )
