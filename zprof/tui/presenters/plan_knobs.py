"""The knobs of a run: which of them apply to it, and the choices of each.

The result is a `Change` of the planner's model, where None means as measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zprof.model.whatif import Calibration, Change
from zprof.tui.session import LoadedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChoice:
    """A choice of a knob; its value is None if it is the measured one."""

    text: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A field of the change, and its choices. ``idle``: why it has no effect with the present change."""

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
        """Index of the measured choice."""
        return next(at for at, choice in enumerate(self.choices) if choice.value is None)

    def is_turned(self, change: Change) -> bool:
        """Return whether the knob has an effect and differs from the measured choice."""
        return not self.idle and self.place(change) != self.measured


AS_IT_IS = "as is"
#: Stages in which a knob has an effect, and why it has none in the others.
_UNIT_BY_UNIT = (frozenset({3}), "stage 3 alone gathers parameters unit by unit")
_AFTER_A_STEP = (frozenset({1, 2}), "stages 1 and 2 alone gather new parameters after the optimizer")
_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
_MAX_MERGED, _MICRO_BATCHES = 8, (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFacts:
    """Facts of a run that decide which knobs it has; None is unknown."""

    world_size: int
    stage: int | None
    has_time: bool
    has_memory: bool
    gathers: bool
    micro_batches: int
    prefetch: int | None = None
    units: int | None = None


def collect_facts(loaded: LoadedRun, calibration: Calibration | None) -> KnobFacts:
    """Return the facts from the report and from the fitted model."""
    report, training = loaded.report, loaded.analysis.training
    kinds = {entry.kind for entry in report.time.collectives}
    return KnobFacts(
        world_size=report.run.world_size,
        stage=report.run.stage,
        has_time=bool(report.time.per_rank),
        has_memory=bool(report.memory.per_rank),
        gathers=any("gather" in kind for kind in kinds),
        micro_batches=training.micro_batches,
        prefetch=calibration.prefetch if calibration else None,
        units=calibration.units if calibration else None,
    )


def list_knobs(facts: KnobFacts, change: Change) -> tuple[Knob, ...]:
    """Return the knobs that apply to the run, in display order; none if nothing was measured."""
    if not (facts.has_time or facts.has_memory):
        return ()
    is_shared = facts.world_size > 1
    is_timed = is_shared and facts.has_time
    has_stage = is_shared and facts.stage is not None
    may_gather = has_stage or (is_shared and facts.gathers)
    found = (
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
    return tuple(_disable_for_stage(knob, stage) for means_something, knob in found if means_something)


def _disable_for_stage(knob: Knob, stage: int | None) -> Knob:
    stages, why = _STAGES_OF_KNOB.get(knob.field, (None, ""))
    return knob if stages is None or stage is None or stage in stages else replace(knob, idle=why)


def turn_knob(knobs: tuple[Knob, ...], change: Change, field: str, by: int) -> Change:
    """Return the change with one knob moved by `by` choices, clamped at either end."""
    knob = next((one for one in knobs if one.field == field), None)
    if knob is None or knob.idle:
        return change
    at = max(0, min(len(knob.choices) - 1, knob.place(change) + by))
    return replace(change, **{field: knob.choices[at].value})


def drop_idle_knobs(knobs: tuple[Knob, ...], change: Change) -> Change:
    """Return the change to predict: without knobs that are idle or as measured."""
    return replace(change, **{knob.field: None for knob in knobs if not knob.is_turned(change)})


def describe_change(knobs: tuple[Knob, ...], change: Change) -> str:
    """Return the turned knobs as text; empty if all are as measured."""
    said = [
        f"{knob.title} {knob.choices[knob.place(change)].text}" for knob in knobs if knob.is_turned(change)
    ]
    return ", ".join(said)


def _make_number_choices(numbers: tuple[int, ...], measured: int | None) -> tuple[KnobChoice, ...]:
    """Return number choices that include the measured one; if unknown, "as is" comes first."""
    if measured is None:
        return (
            KnobChoice(text=AS_IT_IS, value=None),
            *(KnobChoice(text=str(one), value=one) for one in numbers),
        )
    ordered = sorted({*numbers, measured})
    return tuple(KnobChoice(text=str(one), value=None if one == measured else one) for one in ordered)


def _make_switch_choices() -> tuple[KnobChoice, ...]:
    return (
        KnobChoice(text="off", value=False),
        KnobChoice(text=AS_IT_IS, value=None),
        KnobChoice(text="on", value=True),
    )


def _make_ratio_choices() -> tuple[KnobChoice, ...]:
    return tuple(KnobChoice(text=f"x{one:g}", value=None if one == 1 else one) for one in _RATIOS)


def _make_stage_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="stage",
        title="stage",
        says="What ranks share out among them: 0 nothing, 1 the optimizer's state, 2 gradients, too, "
        "3 parameters, too.",
        choices=_make_number_choices((0, 1, 2, 3), facts.stage),
    )


def _make_prefetch_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="prefetch",
        title="prefetch",
        says="So many units are gathered ahead of the one that computes, in both passes: time is hidden, and "
        "the gathered units are held the longer.",
        choices=_make_number_choices((0, 1, 2, 3, 4), facts.prefetch),
    )


def _make_merge_knob(facts: KnobFacts) -> Knob:
    most = min(_MAX_MERGED, facts.units) if facts.units else _MAX_MERGED
    numbers = tuple(one for one in (1, 2, 3, 4, 6, 8) if one <= most)
    return Knob(
        field="units_merged",
        title="merge units",
        says="So many neighbouring units become one: fewer and larger collectives, larger gathered units.",
        choices=_make_number_choices(numbers, 1),
    )


def _make_micro_batch_knob(facts: KnobFacts) -> Knob:
    return Knob(
        field="micro_batches",
        title="micro-batches",
        says="The same samples of a step in so many portions, one pass each.",
        choices=_make_number_choices(_MICRO_BATCHES, facts.micro_batches),
    )


_KEEP = Knob(
    field="keep_after_forward",
    title="keep gathered",
    says="Which units stay gathered from the forward to the backward: those are not gathered again, and hold "
    "their memory in between.",
    choices=(
        KnobChoice(text=AS_IT_IS, value=None),
        *(KnobChoice(text=each, value=each) for each in ("none", "last", "all")),
    ),
)
_BANDWIDTH = Knob(
    field="bandwidth_ratio",
    title="bandwidth",
    says="Of the network, times what the run's collectives had.",
    choices=_make_ratio_choices(),
)
_LATENCY = Knob(
    field="latency_ratio",
    title="latency",
    says="Of a collective, times what the run's collectives had.",
    choices=_make_ratio_choices(),
)
_EVEN = Knob(
    field="even",
    title="even ranks",
    says="On: every rank computes as fast as the median one, so that none is waited for.",
    choices=(KnobChoice(text=AS_IT_IS, value=None), KnobChoice(text="on", value=True)),
)
_OVERLAP_REDUCE = Knob(
    field="overlap_reduce",
    title="overlap reduce",
    says="On: gradients are reduced while the backward computes on; off: the backward waits for each.",
    choices=_make_switch_choices(),
)
_OVERLAP_GATHER = Knob(
    field="overlap_gather",
    title="overlap gather",
    says="On: new parameters are gathered beside the rest of the optimizer and what follows; off: they are "
    "waited for at once.",
    choices=_make_switch_choices(),
)
_STAGES_OF_KNOB: Mapping[str, tuple[frozenset[int], str]] = {
    "prefetch": _UNIT_BY_UNIT,
    "keep_after_forward": _UNIT_BY_UNIT,
    "overlap_gather": _AFTER_A_STEP,
}
