"""Divide a model over the stages of a pipeline, and count in-flight micro-batches and bubbles.

Layers are spread as evenly as possible over the stages; the first stages get the additional ones, but stages
that hold the embedding or the head get them last. p stages, m micro-batches, v model chunks per stage:

    schedule       activations of a stage r, in micro-batches            bubble, in micro-batches of one stage
    GPipe          m                                                     (p-1) (f + b)
    1F1B           min(p - r, m)                                         (p-1) (f + b)
    interleaved    (min(2 (p-r-1) + (v-1) p, m v - 1) + 1) / v           (p-1) (f + b) / v
    zero-bubble    min(p - r, m)                                         (p-1) (f + b) / 3

Sources: arXiv 1811.06965; arXiv 2104.04473, section 2.2; Megatron-LM's interleaved schedule (warm-up
forwards); arXiv 2401.10241, section 2.3 (ZB-H1: f + b - 2 w, with w the weight gradients, a third of f + b).
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.layout import Layout, PipelineSchedule
from zprof.model.transformer import LayerRun, Transformer
from zprof.planner.layers import LayerCost, compute_layer_cost
from zprof.planner.models.counting import count_embedding_elements, count_head_elements

#: Share of a backward and forward pass that ZB-H1 leaves idle per stage.
_ZERO_BUBBLE_SHARE = 1 / 3


class StageParts(Struct, frozen=True, kw_only=True):
    """What one pipeline stage holds on one rank: layers with their counts, embedding, head.

    ``embedding_elements``, ``head_elements``: on this rank, 0 if the stage lacks them. A tied head is held by
    the first and the last stage; on a single stage it is counted once, in the embedding.
    """

    stage: int
    layers: tuple[tuple[int, LayerCost], ...]
    embedding_elements: float
    head_elements: float
    vocabulary: float

    @property
    def layer_count(self) -> int:
        """Layers of the stage."""
        return sum(count for count, _ in self.layers)

    @property
    def root_elements(self) -> float:
        """Elements outside the layers."""
        return self.embedding_elements + self.head_elements

    @property
    def dense_elements(self) -> float:
        """Elements outside the routed experts."""
        return self.root_elements + sum(count * cost.dense_elements for count, cost in self.layers)

    @property
    def expert_elements(self) -> float:
        """Elements of the routed experts."""
        return sum(count * cost.expert_elements for count, cost in self.layers)

    @property
    def elements(self) -> float:
        """All elements."""
        return self.dense_elements + self.expert_elements

    @property
    def largest_layer_elements(self) -> float:
        """Elements of the largest layer."""
        return max((cost.elements for _, cost in self.layers), default=0.0)


def split_stages(model: Transformer, layout: Layout) -> tuple[StageParts, ...]:
    """Return the first stage, the last, and those in between, but only the first of equal ones.

    Of equal stages, the first has the most micro-batches in flight.
    """
    pipeline, ranks = layout.degrees.pipeline, layout.degrees.tensor
    costs = [(run, compute_layer_cost(model, run, layout)) for run in merge_equal_runs(model.layers)]
    sizes = count_stage_layers(model.layer_count, pipeline)
    stages: list[StageParts] = []
    begin = 0
    for stage, size in enumerate(sizes):
        layers = _cut_layers(model.layers, dict(costs), begin, begin + size)
        begin += size
        first, last = stage == 0, stage == pipeline - 1
        if not last and any(layers == parts.layers for parts in stages[1:]):
            continue
        head = count_head_elements(model) / ranks
        if last and model.tied and pipeline > 1:
            head += model.vocabulary * model.hidden / ranks
        stages.append(
            StageParts(
                stage=stage,
                layers=layers,
                embedding_elements=count_embedding_elements(model) / ranks if first else 0.0,
                head_elements=head if last else 0.0,
                vocabulary=(model.vocabulary or model.classes) / ranks if last else 0.0,
            )
        )
    return tuple(stages)


def count_stage_layers(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage: the middle stages get the remainder first, the ends last."""
    sizes = [layers // stages] * stages
    for stage in [*range(1, stages - 1), 0, stages - 1][: layers % stages]:
        sizes[stage] += 1
    return sizes


def count_in_flight(layout: Layout, stage: int) -> float:
    """Return the micro-batches whose activations a stage holds at once."""
    stages, count, chunks = layout.degrees.pipeline, layout.micro_batches, layout.degrees.virtual
    if stages == 1:
        return 1.0
    match layout.schedule:
        case PipelineSchedule.GPIPE:
            return float(count)
        case PipelineSchedule.INTERLEAVED:
            warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
            return (min(warm_up, count * chunks - 1) + 1) / chunks
        case _:
            return float(min(stages - stage, count))


def count_bubble(layout: Layout) -> float:
    """Return the idle time of a stage in forward and backward passes of one micro-batch."""
    idle = float(layout.degrees.pipeline - 1)
    match layout.schedule:
        case PipelineSchedule.INTERLEAVED:
            return idle / layout.degrees.virtual
        case PipelineSchedule.ZERO_BUBBLE:
            return idle * _ZERO_BUBBLE_SHARE
        case _:
            return idle


def merge_equal_runs(runs: Sequence[LayerRun]) -> tuple[LayerRun, ...]:
    """Return one run of each kind of layer, with the layers of all its runs."""
    counts: dict[tuple[object, ...], int] = {}
    for run in runs:
        counts[_get_kind(run)] = counts.get(_get_kind(run), 0) + run.count
    kinds = {_get_kind(run): run for run in runs}
    return tuple(replace(run, count=counts[kind]) for kind, run in kinds.items())


def _get_kind(run: LayerRun) -> tuple[object, ...]:
    return run.mixer, run.feed_forward, run.extra_norms


def _cut_layers(
    runs: Sequence[LayerRun], costs: dict[LayerRun, LayerCost], begin: int, end: int
) -> tuple[tuple[int, LayerCost], ...]:
    """Return the layers from ``begin`` to ``end`` as counts per kind."""
    by_kind = {_get_kind(run): cost for run, cost in costs.items()}
    counts: dict[tuple[object, ...], int] = {}
    at = 0
    for run in runs:
        inside = min(end, at + run.count) - max(begin, at)
        if inside > 0:
            counts[_get_kind(run)] = counts.get(_get_kind(run), 0) + inside
        at += run.count
    return tuple((count, by_kind[kind]) for kind, count in counts.items())
