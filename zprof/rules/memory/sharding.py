"""What sharding should give this run: how many ranks, how large the whole model is, what a unit needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.tenants import Tenant
from zprof.rules.memory.largest import Largest
from zprof.rules.memory.modules import block_count

#: First stage that shards a tenant over the ranks (arXiv 1910.02054, section 5).
SHARDED_FROM: Mapping[Tenant, int] = {
    Tenant.OPTIMIZER_STATE: 1,
    Tenant.GRADIENTS: 2,
    Tenant.PARAMETERS: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Stage and ranks, and the bytes of the whole model's parameters: as they are kept, and on the wire.

    Where the wire's bytes an element are not one number (FSDP2 that gathers in 16 bit and reduces in 32),
    the larger of a parameter's and a gradient's stand for them: a unit is rather too large than too small.
    ``unit_bytes`` is one block on the wire, or all of the model where no blocks are seen.
    """

    stage: int
    ranks: int
    parameters_bytes: int
    wire_bytes: int
    unit_bytes: int
    has_blocks: bool

    @property
    def freed_ratio(self) -> float:
        """What sharding takes away of a whole state: 1 - 1/N."""
        return 1 - 1 / self.ranks


def sharding_of(analysis: RunAnalysis) -> Sharding | None:
    """The run's sharding; None where a fact that it needs is not known."""
    facts = analysis.training
    element = facts.communication_bytes or max(facts.parameter_bytes or 0, facts.gradient_bytes or 0)
    if facts.stage is None or not facts.shard_ranks or not facts.parameters or not element:
        return None
    wire = facts.parameters * element
    blocks = block_count(analysis)
    return Sharding(
        stage=facts.stage,
        ranks=facts.shard_ranks,
        parameters_bytes=facts.parameters * (facts.parameter_bytes or element),
        wire_bytes=wire,
        unit_bytes=-(-wire // blocks) if blocks else wire,
        has_blocks=blocks is not None,
    )


def saved_bytes(big: Largest, sharding: Sharding) -> float:
    """What the stage saves of the states as they were measured: (N - 1) times what is left of each."""
    states = big.memory.state_bytes or {}
    kept = (states.get(tenant, 0) for tenant, stage in SHARDED_FROM.items() if stage <= sharding.stage)
    return float((sharding.ranks - 1) * sum(kept))
