"""ZP506: kernels run slower while a collective runs at the same time.

A collective takes SMs and memory bandwidth from compute; on CPU ranks its threads take cores. Signs: kernels
that do the same work, alone and concurrent with a collective (:mod:`zprof.analysis.time.kernel_comparison`).
Reported if the slowdown is above 1.15 and the excess above 3 % of the step, 1 % if the step can be replayed
(docs/thresholds.md; A100 GEMMs reached 1.76, NVIDIA/nccl issue 1428). With the fix kernels run as fast as
alone.

Kernels with the same name can do different work, in blocks of a different size, when they run concurrently.
So on a device the median kernel (``typical_factor``) must also exceed 1.10.

Ranks on a CPU share its cores with the threads that communicate: a few kernels lose their core for a time
slice of the scheduler, and the mean is 1.3 to 9 times the time alone in healthy gloo runs on two cores, where
the median kernel took 0.95 to 1.13 times as long (seven runs). Time lost to gloo there is a note.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    can_play_kernels,
    find_missing_collectives,
    make_fact,
    make_untested,
    mean_per_step,
    mean_wall_ns,
)
from zprof.analysis.time.kernel_comparison import SLOWDOWN_RATIO, Slowdown, measure_slowdown_by_name
from zprof.causes.cause import Cause, Observation, Proof, Signal, rate_severity
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.slowdown import measure_slowdown
from zprof.step.tasks import Graph

#: Minimum factor for kernels of the measured step to count as slowed down; 1.00 to 1.06 is usual.
_MIN_FITTED_RATIO = 1.10
#: Minimum excess as a share of the step; lower with a replay, which accounts for hidden compute.
_MIN_STEP_RATIO, _MIN_REPLAYED_RATIO = 0.03, 0.01
#: Minimum slowdown of the median kernel on a device; medians mix kernel sizes, which hides some of it.
_MIN_TYPICAL_RATIO = 1.10
#: Below this concurrent share of the step, even a slowdown by a factor of 2 is not worth a finding.
_MIN_CONCURRENT_RATIO = 0.06
#: High confidence needs this many kernels and this share of the time compared, from names that mostly agree.
_SURE_KERNELS, _SURE_JUDGED_RATIO, _MIN_AGREEING_RATIO = 20, 0.05, 0.5
#: Keys of the facts from which the edit and the final range are computed.
_FACTOR, _LOST = "slowdown_beside_collectives", "lost_to_slowdown"

_GPU_FIX = (
    "NCCL_MAX_CTAS=8 (before NCCL 2.17: NCCL_MAX_NCHANNELS=8); lower it until the gathers become exposed\n"
    "NCCL_CTA_POLICY=2: the copy engines gather if NCCL and the buffers support it (zero-CTA)\n"
    "torch.cuda.Stream(priority=-1) for compute does not help: a collective's blocks stay where they are"
)
_CPU_FIX = (
    "leave a core for the communication threads: torch.set_num_threads(cores - 1), same for OMP_NUM_THREADS\n"
    "pin each rank to its own cores: torchrun --numa-binding=node, taskset, numactl"
)

CAUSE = Cause(
    id="ZP506",
    name="comm_slows_compute",
    meaning="Kernels take longer while a collective runs beside them: hidden communication is not free.",
    terms=("compute_ns",),
    taken_from="compute_beside_collectives_per_step",
    proof=Proof.SPEEDS,
    is_priced_by_step=True,
    sentence="kernels take {factor:.2f} times as long during collectives as alone: {lost:ns} of their "
    "{concurrent:ns} {per_step} is lost ({share:percent} {of_step})",
    observed="kernels take {factor:.2f} times as long during collectives as the same kernels of other blocks "
    "alone: at full speed {step_is} shorter",
    evidence={
        _FACTOR: ("slowdown of kernels during a collective", Unit.RATIO),
        "compute_beside_collectives_per_step": ("compute during collectives {per_step}", Unit.NS),
        _LOST: ("lost to the slowdown {per_step}", Unit.NS),
        "kernels_compared": ("kernels during a collective that also ran alone", Unit.COUNT),
        "share_of_compute_compared": ("their share of the compute during collectives", Unit.RATIO),
        "share_in_slowed_kernels": (
            "their share in kernel names that are themselves slowed down",
            Unit.RATIO,
        ),
        "hidden_slowdown": ("at least this part of it is hidden: the step waits for collectives", Unit.NS),
    },
    disprove="record one step with the collectives launched after the compute (no prefetch, a "
    "synchronization after each unit): the same kernels must get faster by this factor",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if kernels are clearly slower during collectives than alone."""
    if (missing := find_missing_collectives(analysis)) is not None:
        return missing
    if not len(analysis.kernels) or not len(analysis.collectives):
        return None
    slowdown, wall_ns = measure_slowdown_by_name(analysis.kernels), mean_wall_ns(analysis)
    concurrent_ns = mean_per_step(analysis, slowdown.concurrent_ns)
    if concurrent_ns <= _MIN_CONCURRENT_RATIO * wall_ns:
        return None
    if not slowdown.known:
        return make_untested("too_few_kernels_alone")
    lost_ns = mean_per_step(analysis, slowdown.excess_ns)
    min_ratio = _MIN_REPLAYED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    if slowdown.factor <= SLOWDOWN_RATIO or lost_ns <= min_ratio * wall_ns:
        return None
    if not is_on_cpu(analysis) and slowdown.typical_factor <= _MIN_TYPICAL_RATIO:
        return None  # kernels of one name do different work during collectives
    share = lost_ns / wall_ns
    return Signal(
        confidence=_rate_confidence(slowdown, on_cpu=is_on_cpu(analysis)),
        severity=rate_severity(lost_ns, wall_ns),
        words={"factor": slowdown.factor, "lost": lost_ns, "concurrent": concurrent_ns, "share": share},
        facts=[
            *_make_facts(slowdown.factor, slowdown.kernels, concurrent_ns, lost_ns),
            make_fact("share_of_compute_compared", slowdown.judged_ratio),
            make_fact("share_in_slowed_kernels", slowdown.agreeing_ratio),
        ],
        lost_ns=min(lost_ns, max(rank.compute_ns for rank in analysis.time.per_rank)),
        fix=_CPU_FIX if is_on_cpu(analysis) else _GPU_FIX,
    )


def _make_facts(factor: float, kernels: int, concurrent_ns: float, lost_ns: float) -> list[Fact]:
    """Return the facts of a slowdown; times are per rank and step."""
    return [
        make_fact(_FACTOR, factor),
        make_fact("compute_beside_collectives_per_step", concurrent_ns),
        make_fact(_LOST, lost_ns),
        make_fact("kernels_compared", kernels),
    ]


def _rate_confidence(slowdown: Slowdown, *, on_cpu: bool) -> Confidence:
    if on_cpu or slowdown.agreeing_ratio < _MIN_AGREEING_RATIO:
        return Confidence.LOW
    is_sure = slowdown.kernels >= _SURE_KERNELS and slowdown.judged_ratio >= _SURE_JUDGED_RATIO
    return Confidence.HIGH if is_sure else Confidence.MEDIUM


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return that kernels at the same place in repeated blocks are slower while collectives run."""
    assert step.graph is not None
    analysis = step.analysis
    if is_refuted(step):
        return None
    slowdown = measure_slowdown(analysis, step.graph, by_time=True)
    concurrent_ns = mean_per_step(analysis, measure_slowdown_by_name(analysis.kernels).concurrent_ns)
    lost_ns = concurrent_ns * (1 - 1 / slowdown.factor)
    return Observation(
        words={"factor": slowdown.factor},
        facts=_make_facts(slowdown.factor, slowdown.kernels, concurrent_ns, lost_ns),
        min_ratio=_MIN_REPLAYED_RATIO,
        fix=_CPU_FIX if is_on_cpu(analysis) else _GPU_FIX,
    )


@CAUSE.refute
def is_refuted(step: PlayedStep) -> bool:
    """Return True if kernels with the same work in the measured step are hardly slower."""
    if step.graph is None or not step.has_kernels:
        return False
    return measure_slowdown(step.analysis, step.graph).factor <= _MIN_FITTED_RATIO


@CAUSE.edit
def undo_slowdown(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Undo the slowdown of the typical kernel, the mean slowdown per ns, and the finding's slowdown."""
    fitted = {measure_slowdown(analysis, graph, by_time=by_time).factor for by_time in (False, True)}
    stated = {entry.value for entry in finding.evidence if entry.key == _FACTOR}
    return [edits.undo_slowdown(graph, factor) for factor in sorted(fitted | stated) if factor > 1]


@CAUSE.complete
def state_hidden_slowdown(analysis: RunAnalysis, finding: Finding) -> Sequence[Fact]:
    """Return the part of the measured loss that the final range excludes.

    The played step excludes kernels that end before the collectives that the step waits for.
    """
    lost_ns = max((entry.value for entry in finding.evidence if entry.key == _LOST), default=0.0)
    if lost_ns < finding.saving_ns[1] + 1:  # savings are integers
        return []
    return [make_fact("hidden_slowdown", lost_ns - finding.saving_ns[1])]
