"""Define the knobs that apply to a run, and the choices of each.

The result is a `Change` for the planner's model, in which None means as measured.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.whatif import Calibration, Change
from zprof.tui.session import LoadedRun


class KnobChoice(Struct, frozen=True, kw_only=True):
    """A choice of a knob; its value is None for the measured one."""

    text: str
    value: Any


class Knob(Struct, frozen=True, kw_only=True):
    """A field of the change, and its choices. ``idle``: why it has no effect with the current change."""

    field: str
    title: str
    says: str
    choices: tuple[KnobChoice, ...]
    idle: str = ""

    def place(self, change: Change) -> int:
        """Return the index of the knob's current choice."""
        value = getattr(change, self.field)
        return next((at for at, choice in enumerate(self.choices) if choice.value == value), self.measured)

    @property
    def measured(self) -> int:
        """Return the index of the measured choice."""
        return next(at for at, choice in enumerate(self.choices) if choice.value is None)

    def is_turned(self, change: Change) -> bool:
        """Return True if the knob has an effect and differs from the measured choice."""
        return not self.idle and self.place(change) != self.measured


AS_IT_IS = "as is"
#: Stages in which a knob has an effect, and why it has none in the others.
_GATHERS_PER_UNIT = (frozenset({3}), "only stage 3 gathers parameters unit by unit")
_GATHERS_AFTER_STEP = (
    frozenset({1, 2}),
    "only stages 1 and 2 gather updated parameters after the optimizer step",
)
_RATIO_CHOICES = (0.25, 0.5, 1.0, 2.0, 4.0)
_MAX_MERGED, _MICRO_BATCHES = 8, (1, 2, 4, 8, 16)


class KnobFacts(Struct, frozen=True, kw_only=True):
    """Facts about a run that determine which knobs it has; None means unknown."""

    world_size: int
    stage: int | None
    has_time: bool
    has_memory: bool
    gathers: bool
    micro_batches: int
    prefetch: int | None = None
    units: int | None = None


def collect_facts(loaded: LoadedRun, calibration: Calibration | None) -> KnobFacts:
    """Collect the facts from the report and from the fitted model."""
    report, training = loaded.report, loaded.run.manifest.training
    kinds = {entry.kind for entry in report.time.collectives}
    return KnobFacts(
        world_size=report.run.world_size,
        stage=report.run.stage,
        has_time=bool(report.time.per_rank),
        has_memory=bool(report.memory.per_rank),
        gathers=any("gather" in kind for kind in kinds),
        micro_batches=calibration.micro_batches if calibration else training.micro_batches,
        prefetch=calibration.prefetch if calibration else None,
        units=calibration.units if calibration else None,
    )


def list_knobs(facts: KnobFacts, change: Change) -> tuple[Knob, ...]:
    """List the knobs that apply to the run, in display order; none if nothing was measured."""
    if not (facts.has_time or facts.has_memory):
        return ()
    is_shared = facts.world_size > 1
    is_timed = is_shared and facts.has_time
    has_stage = is_shared and facts.stage is not None
    may_gather = has_stage or (is_shared and facts.gathers)
    candidates = (
        (has_stage, _make_stage_knob(facts)),
        (may_gather, _make_prefetch_knob(facts)),
        (may_gather, _KEEP),
        (is_timed, _BANDWIDTH),
        (is_timed, _LATENCY),
        (is_timed, _EVEN),
        (is_timed, _OVERLAP_REDUCE),
        (is_timed and may_gather, _OVERLAP_GATHER),
        (is_shared, _make_merge_knob(facts)),
        (True, _make_micro_batch_knob(facts)),
    )
    stage = facts.stage if change.stage is None else change.stage
    return tuple(_disable_for_stage(knob, stage) for applies, knob in candidates if applies)


def _disable_for_stage(knob: Knob, stage: int | None) -> Knob:
    stages, reason = _STAGES_BY_FIELD.get(knob.field, (None, ""))
    return knob if stages is None or stage is None or stage in stages else replace(knob, idle=reason)


def turn_knob(knobs: tuple[Knob, ...], change: Change, field: str, by: int) -> Change:
    """Return the change with one knob moved by ``by`` choices, clamped at either end."""
    knob = next((knob for knob in knobs if knob.field == field), None)
    if knob is None or knob.idle:
        return change
    index = max(0, min(len(knob.choices) - 1, knob.place(change) + by))
    return replace(change, **{field: knob.choices[index].value})


def drop_idle_knobs(knobs: tuple[Knob, ...], change: Change) -> Change:
    """Return the change to predict, without knobs that are idle or at the measured choice."""
    return replace(change, **{knob.field: None for knob in knobs if not knob.is_turned(change)})


def describe_change(knobs: tuple[Knob, ...], change: Change) -> str:
    """Format the changed knobs; empty if all are as measured."""
    parts = [
        f"{knob.title} {knob.choices[knob.place(change)].text}" for knob in knobs if knob.is_turned(change)
    ]
    return ", ".join(parts)


def _make_number_choices(numbers: tuple[int, ...], measured: int | None) -> tuple[KnobChoice, ...]:
    """Return number choices that include the measured one; if unknown, "as is" comes first."""
    if measured is None:
        return (
            KnobChoice(text=AS_IT_IS, value=None),
            *(KnobChoice(text=str(number), value=number) for number in numbers),
        )
    ordered = sorted({*numbers, measured})
    return tuple(
        KnobChoice(text=str(number), value=None if number == measured else number) for number in ordered
    )


def _make_switch_choices() -> tuple[KnobChoice, ...]:
    return (
        KnobChoice(text="off", value=False),
        KnobChoice(text=AS_IT_IS, value=None),
        KnobChoice(text="on", value=True),
    )


def _make_ratio_choices() -> tuple[KnobChoice, ...]:
    return tuple(
        KnobChoice(text=f"x{ratio:g}", value=None if ratio == 1 else ratio) for ratio in _RATIO_CHOICES
    )


def _make_stage_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="stage",
        title="stage",
        says="ZeRO stage: 0 shards nothing, 1 optimizer state, 2 also gradients, 3 also parameters.",
        choices=_make_number_choices((0, 1, 2, 3), facts.stage),
    )


def _make_prefetch_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="prefetch",
        title="prefetch",
        says="Number of units that are gathered ahead of the one that computes, in forward and backward. "
        "More hides more communication, but keeps gathered units in memory for longer.",
        choices=_make_number_choices((0, 1, 2, 3, 4), facts.prefetch),
    )


def _make_merge_knob(facts: KnobFacts) -> Knob:
    max_merged = min(_MAX_MERGED, facts.units) if facts.units else _MAX_MERGED
    numbers = tuple(number for number in (1, 2, 3, 4, 6, 8) if number <= max_merged)
    return Knob(
        field="units_merged",
        title="merge units",
        says="Number of neighbouring units that are merged into one: fewer and larger collectives, larger "
        "gathered units.",
        choices=_make_number_choices(numbers, 1),
    )


def _make_micro_batch_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="micro_batches",
        title="micro-batches",
        says="Number of micro-batches that the samples of a step are split into, with one forward and "
        "backward pass each.",
        choices=_make_number_choices(_MICRO_BATCHES, facts.micro_batches),
    )


_KEEP = Knob(
    field="keep_after_forward",
    title="keep gathered",
    says="Units that stay gathered between forward and backward. They are not gathered again, but occupy "
    "memory in between.",
    choices=(
        KnobChoice(text=AS_IT_IS, value=None),
        *(KnobChoice(text=units, value=units) for units in ("none", "last", "all")),
    ),
)
_BANDWIDTH = Knob(
    field="bandwidth_ratio",
    title="bandwidth",
    says="Network bandwidth, as a multiple of the bandwidth in this run.",
    choices=_make_ratio_choices(),
)
_LATENCY = Knob(
    field="latency_ratio",
    title="latency",
    says="Latency of a collective, as a multiple of the latency in this run.",
    choices=_make_ratio_choices(),
)
_EVEN = Knob(
    field="even",
    title="even ranks",
    says="On: every rank computes at the speed of the median rank, so that no rank waits for a slower one.",
    choices=(KnobChoice(text=AS_IT_IS, value=None), KnobChoice(text="on", value=True)),
)
_OVERLAP_REDUCE = Knob(
    field="overlap_reduce",
    title="overlap reduce",
    says="On: gradients are reduced while the backward continues. Off: the backward waits for each "
    "reduction.",
    choices=_make_switch_choices(),
)
_OVERLAP_GATHER = Knob(
    field="overlap_gather",
    title="overlap gather",
    says="On: updated parameters are gathered while the optimizer and the next step continue. Off: each "
    "gather is waited for immediately.",
    choices=_make_switch_choices(),
)
_STAGES_BY_FIELD: Mapping[str, tuple[frozenset[int], str]] = {
    "prefetch": _GATHERS_PER_UNIT,
    "keep_after_forward": _GATHERS_PER_UNIT,
    "overlap_gather": _GATHERS_AFTER_STEP,
}
