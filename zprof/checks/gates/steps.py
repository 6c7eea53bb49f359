"""The timed steps of the run and of the baseline, as far as both are of the same ranks."""

from zprof.checks.gates.reading import Asked, lacking, named_ranks, unseen
from zprof.model.baseline import TimeBaseline

#: The list of the report that the gates of time sum.
STEPS = "time.steps"
NONE_SEEN = "no collective was seen"
RECORD = "record the time window on all ranks (--time-steps 8)"


def sides(asked: Asked) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """Both sides, and why there is none of the run.

    A run without a rank that the baseline has is not known; nor is a baseline without one that the run has.
    """
    now, before = asked.now.time, None if asked.before is None else asked.before.time
    if now is None:
        return (None, before), "no step was timed"
    ranks = unseen(asked, now, before)
    if ranks:
        return (None, before), f"{named_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} not timed"
    if before is not None and lacking(before.missing_ranks, now.missing_ranks):
        before = None
    return (now, before), ""


def sides_that_met(asked: Asked) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """The same for what collectives take: ranks that must have met, and none was seen, are not known."""
    (now, before), missing = sides(asked)
    if now is not None and asked.now.collectives is None:
        now, missing = None, NONE_SEEN
    if asked.before is not None and asked.before.collectives is None:
        before = None
    return (now, before), missing
