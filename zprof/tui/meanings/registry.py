"""All meanings, by kind of leaf."""

from collections.abc import Mapping

from zprof.tui.meanings.communication import COMMUNICATION
from zprof.tui.meanings.meaning import Meaning, kind_of
from zprof.tui.meanings.memory import MEMORY
from zprof.tui.meanings.overview import OVERVIEW
from zprof.tui.meanings.ranks import RANKS
from zprof.tui.meanings.time import TIME
from zprof.tui.meanings.timeline import STEP_LEAVES

MEANINGS: Mapping[str, Meaning] = {
    meaning.leaf: meaning
    for meaning in (
        *STEP_LEAVES,
        *RANKS,
        *COMMUNICATION,
        *MEMORY,
        *TIME,
        *OVERVIEW,
    )
}


def meaning_of(leaf: str) -> Meaning | None:
    """What is known of this kind of leaf."""
    return MEANINGS.get(kind_of(leaf))
