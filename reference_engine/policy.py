"""A stage is a policy: which of the three model states each rank keeps only 1/N of.

ZeRO, arXiv 1910.02054, section 5: P_os shards the optimizer state, P_os+g the gradients too, P_os+g+p the
parameters too.  Layout, hooks and optimizer are the same for all of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is sharded over the ranks."""

    shard_optimizer: bool
    shard_gradients: bool
    shard_parameters: bool

    @property
    def gathers_after_step(self) -> bool:
        """Each rank updates its shard only, and keeps all parameters: they must be gathered again."""
        return self.shard_optimizer and not self.shard_parameters


def policy_of(stage: int) -> Policy:
    """The policy of a ZeRO stage; stage 0 is plain data parallelism."""
    return Policy(shard_optimizer=stage >= 1, shard_gradients=stage >= 2, shard_parameters=stage >= 3)
