"""The passes of a unit, in the order of a step: forward over all, backward over all, per micro-batch."""

from dataclasses import dataclass
from enum import StrEnum

from zprof.simulator.plan import Plan


class Pass(StrEnum):
    """What a unit does."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One pass of one unit.  ``gathers``: its parameters must be gathered first (stage 3)."""

    micro_batch: int
    unit: int
    kind: Pass
    gathers: bool
    reduces: bool

    @property
    def key(self) -> str:
        """Names its last kernel."""
        return f"{self.kind}.{self.micro_batch}.{self.unit}"

    @property
    def gather_key(self) -> str:
        """Names its gather."""
        return f"gather.{self.key}"


def phases_of(plan: Plan) -> list[Phase]:
    """All phases of a step."""
    return [phase for micro_batch in range(plan.micro_batches) for phase in _micro_batch(plan, micro_batch)]


def _micro_batch(plan: Plan, number: int) -> list[Phase]:
    sharded, rules = plan.stage == 3, plan.gathering
    reduces = plan.reduce_each or number == plan.micro_batches - 1
    fresh = sharded and (number == 0 or rules.reshard_after_forward)
    found = [
        Phase(micro_batch=number, unit=unit, kind=Pass.FORWARD, gathers=fresh, reduces=False)
        for unit in range(plan.units)
    ]
    for unit in reversed(range(plan.units)):
        kept = rules.keep_last_unit and unit == plan.units - 1
        again = sharded and rules.reshard_after_forward and not kept
        kinds = [Pass.RECOMPUTE, Pass.BACKWARD] if rules.recompute else [Pass.BACKWARD]
        for index, kind in enumerate(kinds):
            gathers = again and (index == 0 or rules.recompute_gathers)
            last = kind is Pass.BACKWARD
            found.append(
                Phase(micro_batch=number, unit=unit, kind=kind, gathers=gathers, reduces=last and reduces)
            )
    return found
