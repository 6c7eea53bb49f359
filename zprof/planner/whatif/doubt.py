"""What a run leaves open of a change: cases that are played beside it, and how wide a range is at least.

    half range = noise of this run's steps + max(error of the model on this run + a tenth of what the change
                 makes, floor of the kind of change * measured step)

The floors are our choice: on jobs whose changed twin was simulated or recorded too, another stage was missed
by up to 8 % of the step, other changes by up to 3 %, which the model's error on the run does not show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Change
from zprof.planner.whatif.calibrate import Calibrated
from zprof.planner.whatif.change_words import words_of
from zprof.planner.whatif.changes import changed_habits, changed_skeleton
from zprof.planner.whatif.links import Link

#: How well the model of a change is trusted, beyond its error on the run.
TRUST_RATIO = 0.1
#: Of the measured step: a range is no narrower to either side (the module says why).
STAGE_FLOOR_RATIO = 0.08
OTHER_FLOOR_RATIO = 0.03
#: A latency that is scaled further than by this is taken apart: part of it may not scale at all.
_FAR_RATIO = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change on a link, as it is played."""

    change: Change
    link: Link


def changes_something(model: Calibrated, change: Change) -> bool:
    """Whether the changed run differs from the run at all."""
    same_link = (
        (change.bandwidth_ratio or 1.0) == 1.0
        and change.latency_ratio in (None, 1.0)
        and change.shard_ranks in (None, model.link.group_size)
    )
    same_habits = changed_habits(model.habits, change) == model.habits
    return not (same_link and same_habits and changed_skeleton(model, change) is model.skeleton)


def floor_ratio(model: Calibrated, change: Change) -> float:
    """Share of the measured step by which a range reaches at least to either side."""
    if not changes_something(model, change):
        return 0.0
    other_stage = change.stage is not None and change.stage != model.habits.stage
    return STAGE_FLOOR_RATIO if other_stage else OTHER_FLOOR_RATIO


def likely_cases(model: Calibrated, change: Change) -> tuple[Case, ...]:
    """What may be meant with equal right; the prediction is the mean of these."""
    if not gather_is_open(model, change):
        return (Case(change=change, link=model.link),)
    return tuple(
        Case(change=replace(change, overlap_gather=hidden), link=model.link) for hidden in (True, False)
    )


def outer_cases(model: Calibrated, change: Change) -> tuple[Case, ...]:
    """What cannot be excluded: the range of a prediction reaches to these."""
    link, found = model.link, []
    scales = change.bandwidth_ratio is not None or change.latency_ratio is not None
    if scales and not link.is_known:
        found += [Case(change=change, link=link.with_latency_share(share)) for share in (0.0, 1.0)]
    if is_far(change):
        found.append(Case(change=replace(change, latency_ratio=1.0), link=link))
        found.append(Case(change=change, link=link.with_most_latency()))
    return tuple(found)


def is_far(change: Change) -> bool:
    """Whether a latency is scaled so far that what of it scales counts."""
    ratio = change.latency_ratio
    return ratio is not None and not 1 / _FAR_RATIO <= ratio <= _FAR_RATIO


def gather_is_open(model: Calibrated, change: Change) -> bool:
    """Whether stages 1 or 2 are asked for, and nothing tells if their new parameters are gathered unseen."""
    stage = model.habits.stage if change.stage is None else change.stage
    told = not model.habits.updates_first or model.habits.stage in (1, 2)
    return stage in (1, 2) and not told and change.overlap_gather is None


def gaps_of(model: Calibrated, changes: Sequence[Change]) -> list[Gap]:
    """What stays open of the changes that are asked about, and which of them mean nothing."""
    found = []
    if any(gather_is_open(model, change) for change in changes):
        found.append(
            Gap(
                what="whether stages 1 and 2 hide the gather of new parameters",
                reason="this run has none after its update: the range reaches from hidden under the next "
                "forward to waited for at once",
                remedy="say it: --overlap-gather on or off",
            )
        )
    if any(is_far(change) for change in changes):
        found.append(
            Gap(
                what="how much of the latency is the link's",
                reason="fitted is all that a message costs beside its bytes, software and threads too: the "
                "range reaches from none of it scaled to all that the smallest message took",
                remedy="record a run on such a link, or one with smaller units",
            )
        )
    return found + [gap for change in changes if (gap := _meaningless(model, change))]


def _meaningless(model: Calibrated, change: Change) -> Gap | None:
    """Why a part of the change is without effect."""
    stage = model.habits.stage if change.stage is None else change.stage
    of_passes = change.prefetch is not None or change.keep_after_forward is not None
    said = ""
    if change.overlap_gather is not None and stage not in (1, 2):
        said = f"gathers of new parameters after the update are there in stages 1 and 2, not in stage {stage}"
    elif of_passes and stage != 3:
        said = f"units are gathered for their passes in stage 3, not in stage {stage}"
    elif change.element_bytes_reduced is not None and not model.reduced_element_bytes:
        said = "the run does not say how many bytes an element of its reductions has"
    elif change.units_merged is not None and change.units_merged > len(model.skeleton.units):
        said = f"the run has {len(model.skeleton.units)} units: all of them become one"
    elif change != Change() and not changes_something(model, change):
        said = "the run is like that already"
    if not said:
        return None
    return Gap(
        what=f"{words_of(change)}: effect on the step",
        reason=said,
        remedy="zprof whatif --help says what each change means",
    )
