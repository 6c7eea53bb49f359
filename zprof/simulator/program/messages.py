"""The collectives of a step."""

from zprof.model.collectives import CollectiveKind
from zprof.simulator.plan import DType, Plan
from zprof.simulator.program.instructions import Collective, Lane
from zprof.simulator.program.mesh import Axis
from zprof.simulator.program.phases import Phase


def gather_unit(plan: Plan, phase: Phase, after: tuple[str, ...]) -> Collective:
    """The parameters of a unit, before one of its passes."""
    return Collective(
        key=phase.gather_key,
        kind=CollectiveKind.ALL_GATHER,
        axis=Axis.SHARD,
        lane=Lane.GATHER,
        elements=plan.padded_unit_elements,
        dtype=plan.precision.gather,
        after=after,
        unit=phase.unit,
    )


def reduce_gradients(plan: Plan, key: str, elements: int, after: str, unit: int | None) -> list[Collective]:
    """Gradients to their owners (stage 0: to all), then over the replicas."""
    whole = plan.stage == 0
    kind = CollectiveKind.ALL_REDUCE if whole else CollectiveKind.REDUCE_SCATTER
    made = []
    if plan.shard_size > 1:
        made.append(_reduction(plan, key, kind, Axis.SHARD, Lane.REDUCE, elements, after, unit))
    if plan.replicas > 1:
        owned = elements if whole else elements // plan.shard_size
        before = key if made else after
        kind = CollectiveKind.ALL_REDUCE
        made.append(_reduction(plan, f"{key}.all", kind, Axis.REPLICATE, Lane.REPLICATE, owned, before, unit))
    return made


def _reduction(
    plan: Plan,
    key: str,
    kind: CollectiveKind,
    axis: Axis,
    lane: Lane,
    elements: int,
    after: str,
    unit: int | None,
) -> Collective:
    return Collective(
        key=key,
        kind=kind,
        axis=axis,
        lane=lane,
        elements=elements,
        dtype=plan.precision.reduce,
        after=(after,),
        unit=unit,
    )


def gather_parameters(plan: Plan, key: str, elements: int) -> Collective:
    """New parameters from their owners, after the optimizer (stages 1 and 2)."""
    return Collective(
        key=key,
        kind=CollectiveKind.ALL_GATHER,
        axis=Axis.SHARD,
        lane=Lane.GATHER,
        elements=elements,
        dtype=plan.precision.gather,
        after=("optimizer",),
    )


def scalar(key: str, after: tuple[str, ...]) -> Collective:
    """One element, over all ranks: the loss, or the norm of the gradients."""
    return Collective(
        key=key,
        kind=CollectiveKind.ALL_REDUCE,
        axis=Axis.WORLD,
        lane=Lane.WORLD,
        elements=1,
        dtype=DType.FLOAT32,
        after=after,
    )


def tensor_reduce(plan: Plan, phase: Phase) -> Collective:
    """Activations over the tensor-parallel ranks, after a pass."""
    return Collective(
        key=f"tensor.{phase.key}",
        kind=CollectiveKind.ALL_REDUCE,
        axis=Axis.TENSOR,
        lane=Lane.TENSOR,
        elements=plan.tensor_elements,
        dtype=plan.precision.gather,
        after=(phase.key,),
        unit=phase.unit,
    )


class Buckets:
    """Gradients that pile up until there is enough for one reduction (stages 0 to 2)."""

    def __init__(self, plan: Plan) -> None:
        size = max(plan.bucket_bytes // plan.precision.reduce.size_bytes, plan.shard_size)
        self._size = size - size % plan.shard_size
        self._pending = 0

    def fill(self, elements: int) -> list[int]:
        """Add gradients; the elements of each bucket that is full now."""
        self._pending += elements
        full, self._pending = divmod(self._pending, self._size)
        return [self._size] * full

    def rest(self) -> list[int]:
        """What is left at the end."""
        left, self._pending = self._pending, 0
        return [left] if left else []
