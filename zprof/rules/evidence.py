"""Name the rows of evidence: a rule gives a key and a number, this table gives the words and the unit.

Keys stay the same, for programs that read them. If several rules state a number of one key, each with words
of its own, the name of the row is the key, a slash and what the number is about. The rule fills in the braces
of a row, except those that name the step, which is the window if no steps were marked.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from zprof.model.findings import Evidence
from zprof.model.quantities import Unit
from zprof.model.time import BasisWords

#: Keys that other code reads.
STEPS_LATEST_RATIO = "steps_latest_ratio"

#: Label and unit by name of the row.
ROWS: Mapping[str, tuple[str, Unit]] = {
    # Replays of the step.
    "replayed_saving": ("reduction {of_step} time in a replay without it", Unit.NS),
    # Late ranks.
    "latest_rank_delay_per_step": ("latest rank behind the others {per_step}", Unit.NS),
    "noise_floor/turns": ("delay that noise and clocks can make", Unit.NS),
    "noise_floor/late": ("delay that noise and clocks can cause", Unit.NS),
    "delay_without_processor": ("of it, ready but without a processor", Unit.RATIO),
    "delay_without_compute": ("of it without compute on the late rank", Unit.RATIO),
    "delay_on_main_rank": ("of it on the rank that has most", Unit.RATIO),
    "steps_with_late_rank": ("steps with a late rank", Unit.RATIO),
    "late_ranks": ("ranks that are late in some step", Unit.COUNT),
    "own_time_excess": ("own busy time in excess of the others, median", Unit.NS),
    "own_time_excess_over_all": ("excess over all ranks that are not late", Unit.NS),
    STEPS_LATEST_RATIO: ("steps in which it is the latest", Unit.RATIO),
    "noise_probability": ("probability that this is noise", Unit.RATIO),
    "wait_caused_with_hidden": ("including the part hidden by compute", Unit.NS),
    "waiting_ranks": ("ranks that wait", Unit.COUNT),
    "extra_operator_{place}_per_step": ("{operator} {per_step}", Unit.COUNT),
    "others_operator_{place}_per_step": ("{operator} {per_step}, median of the other ranks", Unit.COUNT),
    "steps_standing_out": ("steps in which it stands out", Unit.COUNT),
    "steps_with_slow_rank": ("steps with a slow rank", Unit.COUNT),
    "wait_caused_per_step": ("wait caused {per_step}, per waiting rank", Unit.NS),
    "wait_caused_per_step/together": (
        "wait caused {per_step} by the late ranks together, per waiting rank",
        Unit.NS,
    ),
    # Transfers: order, sizes and links.
    # What is moved.
    # Hosts and devices.
    "processor_wait_per_step/excess": (
        "ready, but without a processor {per_step}, more than the others",
        Unit.NS,
    ),
}


class Fact(Struct, frozen=True, kw_only=True):
    """A number behind a claim: the name of its row, and the words that the row leaves open."""

    row: str
    value: float
    rank: int | None = None
    words: Mapping[str, object] = field(default_factory=dict)


def make_fact(row: str, value: float, *, rank: int | None = None, **words: object) -> Fact:
    """Build a fact; ``words`` fill the braces of the row's name and label."""
    return Fact(row=row, value=value, rank=rank, words=words)


def write_evidence(fact: Fact, basis: BasisWords) -> Evidence:
    """Return a fact with its key, label and unit."""
    label, unit = ROWS[fact.row]
    return Evidence(
        key=fact.row.partition("/")[0].format(**fact.words),
        what=label.format(per_step=basis.per_step, of_step=basis.of_step, **fact.words),
        value=fact.value,
        unit=unit.value,
        rank=fact.rank,
    )
