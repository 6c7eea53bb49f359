"""Define the knobs that apply to a run, and their choices.

The result is a `Change` for the planner; a field of None stays as measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.plan import Calibration, Change
from zprof.tui.session import LoadedRun


class KnobChoice(Struct, frozen=True, kw_only=True):
    """A choice of a knob; the value of the measured choice is None."""

    text: str
    value: Any


class Knob(Struct, frozen=True, kw_only=True):
    """A field of the change, and its choices. ``idle``: why it has no effect with the current change."""

    field: str
    title: str
    help: str
    choices: tuple[KnobChoice, ...]
    idle: str = ""

    def place(self, change: Change) -> int:
        """Return the index of the knob's current choice."""
        value = getattr(change, self.field)
        return next(
            (index for index, choice in enumerate(self.choices) if choice.value == value), self.measured
        )

    @property
    def measured(self) -> int:
        """Return the index of the measured choice."""
        return next(index for index, choice in enumerate(self.choices) if choice.value is None)

    def is_turned(self, change: Change) -> bool:
        """Return True if the knob has an effect and is not at the measured choice."""
        return not self.idle and self.place(change) != self.measured


AS_IT_IS = "as is"
#: Stages in which a knob has an effect, and why it has no effect in others.
_GATHERS_PER_UNIT = (frozenset({3}), "only stage 3 gathers parameters unit by unit")
_GATHERS_AFTER_STEP = (
    frozenset({1, 2}),
    "only stages 1 and 2 gather updated parameters after the optimizer step",
)
_STAGES_BY_FIELD: Mapping[str, tuple[frozenset[int], str]] = {
    "prefetch": _GATHERS_PER_UNIT,
    "keep_after_forward": _GATHERS_PER_UNIT,
    "overlap_gather": _GATHERS_AFTER_STEP,
}
_MERGES, _MICRO_BATCHES = (1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16)
_RATIOS = tuple(
    KnobChoice(text=f"x{ratio:g}", value=None if ratio == 1 else ratio)
    for ratio in (0.25, 0.5, 1.0, 2.0, 4.0)
)
_SWITCH = (
    KnobChoice(text="off", value=False),
    KnobChoice(text=AS_IT_IS, value=None),
    KnobChoice(text="on", value=True),
)
_KEPT = (
    KnobChoice(text=AS_IT_IS, value=None),
    *(KnobChoice(text=units, value=units) for units in ("none", "last", "all")),
)
#: Title and help of each knob, by field of the change.
_TEXTS = {
    "stage": (
        "stage",
        "ZeRO stage: 0 shards nothing, 1 optimizer state, 2 also gradients, 3 also parameters.",
    ),
    "prefetch": (
        "prefetch",
        "Number of units that are gathered ahead of the one that computes, in forward and backward. More "
        "hides more communication, but keeps gathered units in memory for longer.",
    ),
    "keep_after_forward": (
        "keep gathered",
        "Units that stay gathered between forward and backward. They are not gathered again, but occupy "
        "memory in between.",
    ),
    "bandwidth_ratio": ("bandwidth", "Network bandwidth, as a multiple of the bandwidth in this run."),
    "latency_ratio": ("latency", "Latency of a collective, as a multiple of the latency in this run."),
    "even": (
        "even ranks",
        "On: every rank computes at the speed of the median rank, so that no rank waits for a slower one.",
    ),
    "overlap_reduce": (
        "overlap reduce",
        "On: gradients are reduced while the backward continues. Off: the backward waits for each reduction.",
    ),
    "overlap_gather": (
        "overlap gather",
        "On: updated parameters are gathered while the optimizer and the next step continue. Off: each "
        "gather is waited for immediately.",
    ),
    "units_merged": (
        "merge units",
        "Number of neighbouring units that are merged into one: fewer and larger collectives, larger "
        "gathered units.",
    ),
    "micro_batches": (
        "micro-batches",
        "Number of micro-batches that the samples of a step are split into, with one forward and backward "
        "pass each.",
    ),
}


class KnobFacts(Struct, frozen=True, kw_only=True):
    """Facts about a run that determine its knobs; None: unknown."""

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
    """List the knobs that apply to the run, in display order; empty if nothing was measured."""
    if not (facts.has_time or facts.has_memory):
        return ()
    is_shared = facts.world_size > 1
    is_timed = is_shared and facts.has_time
    has_stage = is_shared and facts.stage is not None
    may_gather = has_stage or (is_shared and facts.gathers)
    merges = [number for number in _MERGES if number <= (facts.units or _MERGES[-1])]
    candidates = {
        "stage": (has_stage, _make_number_choices((0, 1, 2, 3), facts.stage)),
        "prefetch": (may_gather, _make_number_choices((0, 1, 2, 3, 4), facts.prefetch)),
        "keep_after_forward": (may_gather, _KEPT),
        "bandwidth_ratio": (is_timed, _RATIOS),
        "latency_ratio": (is_timed, _RATIOS),
        "even": (is_timed, _SWITCH[1:]),
        "overlap_reduce": (is_timed, _SWITCH),
        "overlap_gather": (is_timed and may_gather, _SWITCH),
        "units_merged": (is_shared, _make_number_choices(merges, 1)),
        "micro_batches": (True, _make_number_choices(_MICRO_BATCHES, facts.micro_batches)),
    }
    stage = facts.stage if change.stage is None else change.stage
    knobs = []
    for field, (applies, choices) in candidates.items():
        title, says = _TEXTS[field]
        stages, reason = _STAGES_BY_FIELD.get(field, (None, ""))
        idle = "" if stages is None or stage is None or stage in stages else reason
        knobs += [Knob(field=field, title=title, help=says, choices=choices, idle=idle)] if applies else []
    return tuple(knobs)


def _make_number_choices(numbers: Sequence[int], measured: int | None) -> tuple[KnobChoice, ...]:
    """Return number choices including the measured number; if it is unknown, "as is" comes first."""
    if measured is None:
        choices = (KnobChoice(text=str(number), value=number) for number in numbers)
        return (KnobChoice(text=AS_IT_IS, value=None), *choices)
    ordered = sorted({*numbers, measured})
    return tuple(
        KnobChoice(text=str(number), value=None if number == measured else number) for number in ordered
    )


def turn_knob(knobs: tuple[Knob, ...], change: Change, field: str, by: int) -> Change:
    """Return the change with one knob moved by ``by`` choices, clamped to the first and last."""
    knob = next((knob for knob in knobs if knob.field == field), None)
    if knob is None or knob.idle:
        return change
    index = max(0, min(len(knob.choices) - 1, knob.place(change) + by))
    return replace(change, **{field: knob.choices[index].value})


def drop_idle_knobs(knobs: tuple[Knob, ...], change: Change) -> Change:
    """Return the change without knobs that are idle or at the measured choice, ready to predict."""
    return replace(change, **{knob.field: None for knob in knobs if not knob.is_turned(change)})


def describe_change(knobs: tuple[Knob, ...], change: Change) -> str:
    """Format the changed knobs; empty if all are as measured."""
    parts = [
        f"{knob.title} {knob.choices[knob.place(change)].text}" for knob in knobs if knob.is_turned(change)
    ]
    return ", ".join(parts)
