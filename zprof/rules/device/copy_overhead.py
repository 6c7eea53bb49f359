"""ZP507 copy_overhead: copies around collectives hold the compute up.

FSDP2 gathers into one buffer and copies each parameter out of it (``split_with_sizes_copy``), and copies
gradients into one before it reduces them (``chunk_cat``).  Counted is the time of such kernels, and of those
launched within ``FSDP::all_gather_copy_in`` and ``..._out``, in which nothing else computes, without those
of gathers that need not be (ZP412 to ZP415): they vanish with them.  Reported above 3 % of the step (our
choice), or where a replay of the step says that they cost 1 % of it.

Where most of it is ``chunk_cat``, copies out are as quick as copies in, and it is what FSDP2 always costs, or
padding of shapes that do not divide (ZP417): low.

What moves must be copied once where shards are not contiguous, so the saving is from half of it on: a
copy of contiguous rows runs at the memory's speed, one of many narrow ones far below.  Where the step can be
replayed, the saving is what it wins with none of these copies, as where parameters are views of a flat unit.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.kernels import function_name
from zprof.model.printable import printable
from zprof.model.units import format_ns, format_percent
from zprof.rules.copies import INTO, copies, copies_of_gathers_ns
from zprof.rules.rows import can_replay, has_no_collectives, mean_per_step, of_kind, wall_ns
from zprof.rules.rule import finding, fix_for, not_tested, severity_of
from zprof.rules.volume.passes.regathers import PROPOSED_RATIO, worth_a_word

_WORTH_RATIO = 0.03
_SURE_RATIO = 0.5
_LEAST_COPIES = 3
#: Copies in cost about what copies out cost (0.53 to 0.63 of both in healthy FSDP2 programs on CPU ranks):
#: where they are most of it, what is copied out of gathers is no slower than usual.
_MOSTLY_RATIO = 1 / 2

_FIXES = {
    "FSDP2": "fully_shard(block)  # without shard_placement_fn: any dimension but the first is copied twice\n"
    "fully_shard(block, reshard_after_forward=False)  # one gather, one copy a step; costs memory\n"
    "one dtype and few, large parameters a unit: fuse q, k and v",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "contiguous_gradients": true,\n'
    '                      "stage3_prefetch_bucket_size": 50000000}',
    "reference": "none: a flat unit is gathered in place, and its parameters are views",
}


def copy_overhead(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where copies around collectives take much of the step."""
    if has_no_collectives(analysis):
        return not_tested(Cause.COPY_OVERHEAD, "no collective was recorded", "record the time window")
    if analysis.kernels.empty:
        return None
    rows = copies(analysis)
    worth = PROPOSED_RATIO if can_replay(analysis) else _WORTH_RATIO
    cost, least = mean_per_step(analysis, float(rows["uncovered_ns"].sum())), worth * wall_ns(analysis)
    if rows["count"].sum() < _LEAST_COPIES or cost <= least:
        return None
    cost -= copies_of_gathers_ns(analysis, worth_a_word(analysis))
    return _finding(analysis, cost) if cost > least else None


def _finding(analysis: RunAnalysis, cost: float) -> Finding:
    rows = copies(analysis)
    most = rows.groupby("name")["uncovered_ns"].sum()
    name = printable(function_name(str(most.idxmax())) or str(most.idxmax()))[:80]
    into = mean_per_step(analysis, float(most[most.index.str.contains(INTO)].sum()))
    count = mean_per_step(analysis, float(rows["count"].sum()))
    gathers = of_kind(analysis.collectives, CollectiveKind.ALL_GATHER)
    moved = mean_per_step(analysis, float(gathers["bytes"].sum()))
    return finding(
        Cause.COPY_OVERHEAD,
        sentence=f"copies around collectives take {format_ns(cost)} a step "
        f"({format_percent(cost / wall_ns(analysis))} of it), most of it {name}",
        evidence=[
            Evidence(what="copies around collectives, nothing beside them, a step", value=cost, unit="ns"),
            Evidence(what="of them a step", value=count, unit="count"),
            Evidence(what="the largest, a step", value=mean_per_step(analysis, most.max()), unit="ns"),
            Evidence(what="gathered a step", value=moved, unit="bytes"),
            Evidence(what="gathered bytes a second of copying", value=moved * 1e9 / cost, unit="bytes_per_s"),
        ],
        saving_ns=(_SURE_RATIO * cost, cost),
        severity=severity_of(cost, wall_ns(analysis)),
        confidence=Confidence.LOW if into > _MOSTLY_RATIO * cost else Confidence.HIGH,
        fix=fix_for(analysis.training.engine, _FIXES),
        disprove="copy a buffer of one unit's size with torch.split_with_sizes_copy in chunks of the same "
        "sizes: if that is as slow by itself, the shapes are the cause; if it is fast, what ran beside it is",
    )
