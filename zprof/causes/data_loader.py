"""ZP504: the device has nothing to run while the host waits for the next batch.

Signs: the idle time within ``enumerate(DataLoader)#….__next__``, with the launch gap right after it, on most
ranks and in the typical step. At least 2 % of the step is a finding (docs/thresholds.md; measured healthy
loaders take 0.3 to 0.7 %), at least 5 % has high confidence. The step played with batches that are ready may
reveal smaller losses on devices: from a gain of 1.5 %.

A late first batch (workers start, caches are cold) is not reported if the others are on time. A batch that is
late on a single rank belongs to ZP301 and ZP302. With the fix each batch is ready when it is requested.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, make_untested, mean_wall_ns
from zprof.analysis.intervals import intersect, measure
from zprof.analysis.time.host_calls import read_loader_spans
from zprof.analysis.time.host_time import (
    find_missing_host,
    find_single_occurrence,
    mean_of_most_ranks,
    median_of_most_ranks,
    rate_confidence,
)
from zprof.analysis.time.program_lines import locate_loader
from zprof.base.errors import BadInput
from zprof.causes.cause import Cause, Observation, Proof, Sign, Signal
from zprof.causes.fix import LOAD_AHEAD
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import measure_loading_ns
from zprof.step.tasks import Graph

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO, _SURE_STEP_RATIO = 0.02, 0.05
#: Loaders that take at most this much longer than in the baseline count as unchanged.
_MAX_GROWTH_RATIO = 1.5

CAUSE = Cause(
    id="ZP504",
    name="data_loader",
    meaning="The device has nothing to run while the host waits for the next batch.",
    terms=("idle_ns", "exposed_transfer_ns"),
    produces=(Sign.FIRST_GATHER,),  # it is launched after the batch
    proof=Proof.COUNTS,
    is_stall=True,
    idles_device=True,
    is_of_host=True,
    sentence="every rank waits {lost:ns} {of_each_step} for its data loader ({share:.0%})",
    observed="the devices wait for batches: with batches ready when they are requested, {step_is} shorter",
    evidence={
        "idle_in_data_loader_per_step": ("idle time {per_step} while fetching a batch", Unit.NS),
        "idle_beside_collective": ("of it with a concurrent collective", Unit.NS),
    },
    fix=LOAD_AHEAD,
    disprove="train on one batch kept in memory and record again: if the step takes as long, "
    "the loader is not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if all ranks wait for data in the typical step."""
    if not len(analysis.host):
        return find_missing_host(analysis)
    if not analysis.host.ints("loads").any():
        return make_untested("no_data_loader")
    wall_ns, lost_ns = mean_wall_ns(analysis), mean_of_most_ranks(analysis, "loader_ns")
    if min(lost_ns, median_of_most_ranks(analysis, "loader_ns")) < _MIN_STEP_RATIO * wall_ns:
        return find_single_occurrence(analysis, _MIN_STEP_RATIO, "loader_ns")
    share = lost_ns / wall_ns
    return Signal(
        confidence=rate_confidence(analysis, share, _SURE_STEP_RATIO, _MIN_STEP_RATIO),
        words={"lost": lost_ns, "share": share},
        facts=[
            make_fact("idle_in_data_loader_per_step", lost_ns),
            make_fact("idle_beside_collective", mean_of_most_ranks(analysis, "loader_under_ns")),
            make_fact("share_of_step", share),
        ],
        lost_ns=lost_ns + mean_of_most_ranks(analysis, "loader_exposed_ns"),
        locate=lambda: locate_loader(analysis.source),
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return that hosts spend time in the loader; the step without that time shows the cost."""
    assert step.graph is not None
    loading_ns = measure_loading_ns(step.analysis, step.graph)
    if not any((each > 0).any() for each in loading_ns.values()):
        return None
    return Observation(locate=lambda: locate_loader(step.analysis.source))


@CAUSE.edit
def load_without_wait(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step without the time that the host waits for the loader, beyond a fetch."""
    return [edits.shorten_gaps(graph, measure_loading_ns(analysis, graph))]


@CAUSE.compare
def is_loading_as_long(analysis: RunAnalysis, baseline: RunAnalysis) -> bool:
    """Return True if the loaders of the baseline took about as long per step, exposed or hidden."""
    now_ns, before_ns = _measure_loading_ns(analysis), _measure_loading_ns(baseline)
    return 0 < now_ns <= _MAX_GROWTH_RATIO * before_ns


def _measure_loading_ns(analysis: RunAnalysis) -> float:
    """Measure the mean time per rank and step in the loader; 0 if the run was moved or deleted."""
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
