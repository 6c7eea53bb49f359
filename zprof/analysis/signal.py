"""Define what measurements hand to the causes: facts, which are numbers, and what is missing to test a cause.

The record of a cause (:mod:`zprof.causes.cause`) has the words for its facts.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from zprof.model.gap_texts import fill_text
from zprof.model.gap_texts.untested import UNTESTED_TEXTS
from zprof.model.gaps import GapKind


class Fact(Struct, frozen=True, kw_only=True):
    """A number behind a claim: the key of its label, and the words that the label leaves open."""

    key: str
    value: float
    rank: int | None = None
    words: Mapping[str, object] = field(default_factory=dict)


def make_fact(key: str, value: float, *, rank: int | None = None, **words: object) -> Fact:
    """Build a fact; ``words`` fill the braces of the key and of its label."""
    return Fact(key=key, value=value, rank=rank, words=words)


class Untested(Struct, frozen=True, kw_only=True):
    """Why a cause cannot be tested on a run, and what to record instead."""

    reason: str
    remedy: str
    kind: GapKind = GapKind.UNTESTED_RULE


def make_untested(key: str, /, *, kind: GapKind = GapKind.UNTESTED_RULE, **values: object) -> Untested:
    """Return why a cause cannot be tested, with the texts of ``key``, filled with ``values``."""
    reason, remedy = UNTESTED_TEXTS[key]
    return Untested(reason=fill_text(reason, values), remedy=fill_text(remedy, values), kind=kind)
