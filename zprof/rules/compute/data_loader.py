"""ZP504 data_loader: the device has nothing to run while the host waits for the next batch.

Signal: the idle time within ``enumerate(DataLoader)#….__next__``, with the launch gap right after it, on most
ranks and in the typical step. At least 2 % of the step is a finding (docs/thresholds.md; measured healthy
loaders take 0.3 to 0.7 %), at least 5 % has high confidence.

A late first batch (workers start, caches are cold) is not reported if the others are on time. A batch that is
late on a single rank belongs to ZP301 and ZP302. With the fix each batch is ready when it is requested.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import intersect, measure
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.host_calls import read_loader_spans
from zprof.analysis.time.program_lines import locate_loader
from zprof.causes.fix import ANY, Fix, choose_fix, is_on_cpu
from zprof.model.errors import BadInput
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Framework
from zprof.rules.compute.idle_time import (
    count_processors_per_rank,
    find_missing_host_gap,
    find_single_occurrence_gap,
    mean_of_most_ranks,
    median_of_most_ranks,
    rate_confidence,
)
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO = 0.02
_HIGH_CONFIDENCE_RATIO = 0.05
#: Loaders that take at most this much longer than in the baseline are the same.
_MAX_GROWTH_RATIO = 1.5

#: Workers to advise if the number of processors is unknown, and at most.
_DEFAULT_WORKERS, _MAX_WORKERS = 4, 8
#: Batches to keep ready over all workers; each worker keeps two by default.
_READY_BATCHES = 4
_DEFAULT_PREFETCH = 2
_IN_LOADER = "DataLoader(..., num_workers=$workers$prefetch,\n           persistent_workers=True$pinned)"
_FIX = Fix(
    forms={},
    settings={
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(dataloader_num_workers=$workers$trainer_prefetch,\n"
        "                  dataloader_persistent_workers=True$trainer_pinned)",
    },
    general=_IN_LOADER,
)


def data_loader(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if all ranks wait for data."""
    missing = _find_missing_input_gap(analysis)
    if missing:
        return missing
    wall, lost_ns = mean_wall_ns(analysis), mean_of_most_ranks(analysis, "loader_ns")
    if min(lost_ns, median_of_most_ranks(analysis, "loader_ns")) < _MIN_STEP_RATIO * wall:
        return find_single_occurrence_gap(analysis, Cause.DATA_LOADER, _MIN_STEP_RATIO, "loader_ns")
    words = analysis.time.words
    hidden_ns = mean_of_most_ranks(analysis, "loader_under_ns")
    max_lost_ns = lost_ns + mean_of_most_ranks(analysis, "loader_exposed_ns")
    return make_finding(
        analysis,
        Cause.DATA_LOADER,
        sentence=f"every rank waits {format_ns(lost_ns)} {words.of_each_step} for its data loader "
        f"({lost_ns / wall:.0%})",
        evidence=[
            make_fact("idle_in_data_loader_per_step", lost_ns),
            make_fact("idle_beside_collective", hidden_ns),
            make_fact("share_of_step", lost_ns / wall),
        ],
        saving_ns=(0.0, max_lost_ns),
        severity=rate_severity(max_lost_ns, wall),
        confidence=rate_confidence(analysis, lost_ns / wall, _HIGH_CONFIDENCE_RATIO, _MIN_STEP_RATIO),
        fix=choose_loader_fix(analysis),
        disprove="train on one batch kept in memory and record again: if the step takes as long, "
        "the loader is not the cause",
        location=locate_loader(analysis.source),
    )


def _find_missing_input_gap(analysis: RunAnalysis) -> Gap | None:
    if not len(analysis.host):
        return find_missing_host_gap(analysis, Cause.DATA_LOADER)
    if analysis.host.ints("loads").any():
        return None
    return untested_gap(
        Cause.DATA_LOADER,
        "the trace contains no data loader",
        'iterate over a torch DataLoader, or fetch in record_function("enumerate(DataLoader)#mine.__next__")',
    )


def is_loading_as_long(analysis: RunAnalysis, baseline: RunAnalysis) -> bool:
    """Return True if the loaders of the baseline took about as long per step, exposed or hidden."""
    now_ns, before_ns = _measure_loading_ns(analysis), _measure_loading_ns(baseline)
    return 0 < now_ns <= _MAX_GROWTH_RATIO * before_ns


def _measure_loading_ns(analysis: RunAnalysis) -> float:
    """Measure the mean time per rank and step in the loader; 0 if the run has been moved away."""
    run, steps = analysis.source, sum(len(tracks.host_steps) for tracks in analysis.tracks)
    if run is None or not steps:
        return 0.0
    try:
        spans = [
            intersect(tracks.clock.common(read_loader_spans(run, tracks.rank)), tracks.host_steps.spans)
            for tracks in analysis.tracks
        ]
    except BadInput:
        return 0.0
    return sum(measure(each) for each in spans) / steps


def choose_loader_fix(analysis: RunAnalysis) -> str:
    """Return the fix with as many workers as there are processors for; pinned memory only with a device.

    One processor of each rank is left to its training thread.
    """
    processors = count_processors_per_rank(analysis)
    workers = min(_MAX_WORKERS, max(1, processors - 1)) if processors else _DEFAULT_WORKERS
    factor = -(-_READY_BATCHES // workers)
    prefetch = f"prefetch_factor={factor}" if factor > _DEFAULT_PREFETCH else ""
    on_cpu = is_on_cpu(analysis)
    loader = choose_fix(
        analysis,
        _FIX,
        {
            "workers": workers,
            "prefetch": f", {prefetch}" if prefetch else "",
            "trainer_prefetch": f", dataloader_{prefetch}" if prefetch else "",
            "pinned": "" if on_cpu else ", pin_memory=True",
            "trainer_pinned": "" if on_cpu else ", dataloader_pin_memory=True",
        },
    )
    if on_cpu or analysis.training.framework is not None:  # a framework moves the batches itself
        return f"{loader}\nmove decoding and tokenizing out of the loop"
    return f"{loader}\nbatch.to(device, non_blocking=True); move decoding and tokenizing out of the loop"
