"""The law of a stage: what one step of one micro-batch moves, in parameters of the model.

Stages 0, 1 and 2 move 2 parameters' worth (an all-reduce is a reduce-scatter and an all-gather), stage 3
moves 3 (Rajbhandari et al. 2020, section 7).  In bytes: gathers in their type, reductions in theirs.
"""

from zprof.simulator.plan import Plan


def law_bytes(plan: Plan) -> int:
    """Bytes of a step by the law, with the plan's types; 0 where nothing is shared."""
    if plan.shard_size * plan.replicas == 1:
        return 0
    elements = plan.units * plan.unit_elements
    gather, reduce = plan.precision.gather.size_bytes, plan.precision.reduce.size_bytes
    if plan.stage == 0:
        return 2 * elements * reduce
    return elements * (reduce + (2 if plan.stage == 3 else 1) * gather)
