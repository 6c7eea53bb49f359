"""ZP440: the experts of some ranks get more tokens than others, and all ranks of the group wait for them.

Between the all_to_all that dispatches tokens and the next one, which combines their results, a rank computes
its experts. If a rank's experts get more tokens, this compute takes longer, and the bytes that it sends back
are more. A rank with a slow device takes longer elsewhere too: see :mod:`zprof.step.unequal_work`.

Saving: the step in which all ranks of a group take the mean, exchange by exchange.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.causes.cause import Cause, Observation, Sign
from zprof.causes.mesh_fixes import MeshFix, choose_mesh_fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph
from zprof.step.unequal_work import MIN_EXPERT_SPREAD_RATIO, even_out_experts, measure_experts

#: Least work of the heaviest rank relative to the mean: with less, loads differ by layer, which is usual.
_STEADY_LOAD = 1.06
_FIX = MeshFix(
    megatron="--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2, or "
    "--moe-router-enable-expert-bias\n  a bound for each expert: --moe-expert-capacity-factor 1.25 "
    "--moe-token-drop-policy probs",
    torchtitan="load_balance_coeff = 1e-3 of the MoE layers (bias of the router)",
    deepspeed="MoE(..., capacity_factor=1.25, drop_tokens=True), and add its l_aux to the loss",
    general="place experts with many tokens on different ranks, or replicate them (EPLB)",
)

CAUSE = Cause(
    id="ZP440",
    name="expert_imbalance",
    meaning="The experts of one rank get more tokens than those of the others, which wait for it.",
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    produces=(Sign.LATE_RANK, Sign.UNEQUAL_WORK, Sign.EXPOSED_ROLE, Sign.SLOW_MESSAGES),
    is_stall=True,
    is_seen_in_spans=True,
    amounts=("expert_load",),
    observed="the experts of rank {rank} take {load:.2f} times the mean of their group, its other compute is "
    "as fast as the others': with equal experts {step_is} shorter",
    evidence={
        "expert_load": ("compute of its experts, relative to the mean of the group", Unit.RATIO),
        "expert_tokens": ("bytes that its experts send back, relative to the mean", Unit.RATIO),
        "expert_spread": ("slowest rank's experts beyond the mean, over all exchanges", Unit.RATIO),
        "other_spread": ("the same of the rest of the compute", Unit.RATIO),
        "expert_work_per_step": ("compute of experts {per_step}, mean of the group", Unit.NS),
    },
    disprove="log the tokens per expert and layer: if they are equal, the rank's device is slow at these "
    "kernels",
)


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the group whose experts have the most unequal work."""
    graph, analysis = step.graph, step.analysis
    assert graph is not None
    found = [each for each in measure_experts(analysis, graph) if each.is_by_data]
    worst = max(found, key=lambda each: each.spread_ratio * each.mean_ns, default=None)
    if worst is None or worst.spread_ratio < MIN_EXPERT_SPREAD_RATIO:
        return None
    rank = worst.heaviest
    facts = [
        make_fact("expert_load", worst.largest_load, rank=rank),
        make_fact("expert_spread", worst.spread_ratio),
        make_fact("other_spread", worst.rest_ratio),
        make_fact("expert_work_per_step", worst.mean_ns),
    ]
    if worst.tokens:
        facts.append(make_fact("expert_tokens", worst.tokens[worst.ranks.index(rank)], rank=rank))
    return Observation(
        words={"rank": rank, "load": worst.largest_load},
        facts=facts,
        is_doubtful=worst.largest_load < _STEADY_LOAD,
        fix=choose_mesh_fix(analysis, _FIX),
        max_confidence=Confidence.HIGH,
    )


@CAUSE.edit
def even_out(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with equal work of experts, with and without equal messages."""
    return even_out_experts(analysis, graph)
