"""Leaves that communication is held against: the law of volume, sums, the clocks."""

from zprof.tui.meanings.communication_rows import of_clocks, of_collective, of_matching, of_volume
from zprof.tui.meanings.meaning import Meaning

_LAW = (
    "With P parameters, of as many bytes as travel, a rank moves 2P a step in stages 0, 1 and 2 and 3P in "
    "stage 3 (arXiv 1910.02054, section 7); stages 2 and 3 in every micro-batch. An all-reduce counts "
    "twice; the ring's (N-1)/N is left out on both sides. Replicas of shards are not counted."
)
_VOLUME = tuple(
    Meaning(leaf=f"volume.{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=of_volume)
    for leaf, title, says, formula, inputs in (
        (
            "seen_bytes",
            "bytes a rank moved in a step",
            f"Mean over the ranks that moved any. {_LAW}",
            "",
            ("expected_bytes", "ratio"),
        ),
        ("expected_bytes", "bytes by the law", _LAW, "2P, 2P, 2P, 3P", ("seen_bytes", "ratio")),
        (
            "ratio",
            "bytes against the law",
            f"Above 1 something travels more often than it has to; below, less than the law says. {_LAW}",
            "seen / expected",
            ("seen_bytes", "expected_bytes"),
        ),
    )
)
_SUM = (
    "Of all single collectives of the steps: mean of a step over the loaded ranks, each collective weighted "
    "with its rank. The ledger's term, but for what runs across the ends of the window: a collective "
    "belongs whole to the step that launched it, the ledger cuts time at the steps. Groups of the table "
    "are means over their own ranks, and do not add up to it."
)
_SUMS = (
    Meaning(
        leaf="time.exposed_in_collectives.wait_ns",
        title="exposed waiting of all collectives",
        says=_SUM,
        inputs=("transfer_ns",),
        rows=of_collective(("group", "exposed_wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"),
    ),
    Meaning(
        leaf="time.exposed_in_collectives.transfer_ns",
        title="exposed transfer of all collectives",
        says=_SUM,
        inputs=("wait_ns",),
        rows=of_collective(("group", "exposed_transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_ALIGNMENT = (
    Meaning(
        leaf="time.alignment.uncertainty_ns",
        title="doubt of the clocks",
        says="To what the offset of the worst rank's clock is known. Clocks are aligned by the collectives "
        "themselves: no rank can leave one before all have entered. A wait below twice this means nothing.",
        inputs=("matched", "unmatched"),
        rows=of_clocks,
    ),
    Meaning(
        leaf="time.alignment.matched",
        title="collectives matched across ranks",
        says="The rows of all ranks of the group were found to be one collective, and checked: no rank left "
        "before another had entered.",
        inputs=("unmatched", "uncertainty_ns"),
        rows=of_matching,
    ),
    Meaning(
        leaf="time.alignment.unmatched",
        title="collectives not matched",
        says="Ranks are missing, or what was found could not be: of these a wait is at least, a transfer at "
        "most what is shown.",
        inputs=("matched",),
        rows=of_matching,
    ),
)
CHECKS: tuple[Meaning, ...] = (*_VOLUME, *_SUMS, *_ALIGNMENT)
