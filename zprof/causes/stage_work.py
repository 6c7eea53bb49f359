"""What the causes of unequal pipeline stages share: signal, evidence, and the step with equal stages."""

from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact, mean_wall_ns
from zprof.analysis.mesh.stages import Stages, measure_stages
from zprof.causes.cause import Signal
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step.edits import scale_ranks, shorten_own_work
from zprof.step.tasks import Graph

#: Minimum excess of a stage as a share of the step: for a finding, on CPU ranks, and for high confidence.
#: The medians of a CPU rank's operators vary by several percent with its neighbors' load.
_MIN_STEP_RATIO, _MIN_STEP_RATIO_ON_CPU, _SURE_STEP_RATIO = 0.02, 0.05, 0.05
#: Share of the excess whose move gains at least as much: zero-bubble schedules fill the rest of the waits.
_NEARLY_RATIO = 0.7
_MAX_RANKS = 3
WORK_EVIDENCE: Mapping[str, tuple[str, Unit]] = {
    "stage_work_excess": ("work of this stage beyond the mean {per_step}", Unit.NS),
    "stage_{stage}_work": ("work of stage {stage} {per_step}", Unit.NS),
    "stage_calls": ("{operations} of this stage {per_step}", Unit.COUNT),
    "other_calls": ("{operations} of the stage with the median time {per_step}", Unit.COUNT),
    "bubble_per_step": ("waits for other stages {per_step}, mean of the ranks", Unit.NS),
}


def is_long(analysis: RunAnalysis, excess_ns: float) -> bool:
    """Return True if a stage that is longer by this time lengthens the step."""
    ratio = _MIN_STEP_RATIO_ON_CPU if is_on_cpu(analysis) else _MIN_STEP_RATIO
    return excess_ns >= ratio * mean_wall_ns(analysis)


def name_operations(analysis: RunAnalysis) -> str:
    """Return what stages are compared by."""
    return "operators" if is_on_cpu(analysis) else "kernels"


def rate_excess(analysis: RunAnalysis, excess_ns: float) -> Confidence:
    """Return the confidence that a stage which is longer by this time sets the pace of the pipeline.

    If ranks are missing, the others of the stage may be as fast as those of other stages.
    """
    is_complete = len(analysis.run.ranks_loaded) == analysis.run.world_size
    is_sure = is_complete and excess_ns >= _SURE_STEP_RATIO * mean_wall_ns(analysis)
    return Confidence.HIGH if is_sure else Confidence.MEDIUM


def make_work_signal(
    analysis: RunAnalysis, stages: Stages, words: Mapping[str, object] | None = None
) -> Signal:
    """Return the signal of the stage with the most work; ``words`` are further words of the sentence."""
    full, reference = stages.find_fullest(), stages.stages[stages.reference]
    excess_ns = full.work_ns - stages.mean_work_ns
    operations = name_operations(analysis)
    return Signal(
        confidence=rate_excess(analysis, excess_ns),
        words={
            "stage": full.stage + 1,
            "stages": len(stages.stages),
            "ranks": name_ranks(full.ranks),
            "more": excess_ns / stages.mean_work_ns,
            "excess": excess_ns,
            "won": stages.gain_of_equal_split_ns,
            **(words or {}),
        },
        facts=[
            make_fact("stage_work_excess", excess_ns),
            *(
                make_fact("stage_{stage}_work", each.work_ns, stage=each.stage + 1)
                for each in stages.stages
                if each in (full, reference)
            ),
            make_fact("stage_calls", full.calls, operations=operations),
            make_fact("other_calls", reference.calls, operations=operations),
            make_fact("bubble_per_step", stages.bubble.total_ns),
        ],
        lost_ns=excess_ns,
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text: "rank 3", "ranks 4 to 7", "ranks 0, 2 and 6 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    named = ", ".join(str(rank) for rank in ranks[:_MAX_RANKS])
    more = len(ranks) - _MAX_RANKS
    return f"ranks {named} and {more} more" if more > 0 else f"ranks {named}"


def balance_stages(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which all stages have the mean work, 70 % of it moved, and only the fullest has.

    Which passes of a stage the work is taken from is unknown, so the gains differ.
    """
    stages = measure_stages(analysis)
    if stages is None:
        return []
    mean_ns, full = stages.mean_work_ns, stages.find_fullest()
    ratios = {stage.stage: mean_ns / stage.work_ns for stage in stages.stages}
    nearly = {stage: 1 + _NEARLY_RATIO * (ratio - 1) for stage, ratio in ratios.items()}
    return [
        scale_stages(analysis, graph, each) for each in (ratios, nearly, {full.stage: ratios[full.stage]})
    ]


def scale_stages(analysis: RunAnalysis, graph: Graph, ratios: Mapping[int, float]) -> Graph:
    """Return the step in which the work of stages takes this share of its time, by stage.

    A CPU rank's thread does more than run the operators of its stage: that stays.
    """
    stages = measure_stages(analysis)
    if stages is None:
        return graph
    chosen = {rank: stage for stage in stages.stages if stage.stage in ratios for rank in stage.ranks}
    if not is_on_cpu(analysis):
        return scale_ranks(graph, {rank: ratios[stage.stage] for rank, stage in chosen.items()})
    return shorten_own_work(
        graph, {rank: (1 - ratios[stage.stage]) * stage.busy_ns for rank, stage in chosen.items()}
    )
