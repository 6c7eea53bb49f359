"""The moment of a step at which a device holds the most, of several that are known in part.

What is unknown may be any size: the moment with the most known bytes is taken, and the unknown terms of all
moments stay with it, so that its sum is a lower bound and never passes for the peak.
"""

from collections.abc import Mapping, Sequence

from zprof.model.planning.plan import Term

Moments = Mapping[str, Sequence[Term]]


def highest(moments: Moments) -> tuple[tuple[Term, ...], str]:
    """Terms at the highest moment, and its name; the first of equals."""
    name = max(moments, key=lambda each: known_bytes(moments[each]))
    unknown = [
        term for other, terms in moments.items() for term in terms if other != name and term.bytes is None
    ]
    return (*moments[name], *dict.fromkeys(unknown)), name


def known_bytes(terms: Sequence[Term]) -> int:
    """The sum of the terms whose bytes are known."""
    return sum(term.bytes for term in terms if term.bytes is not None)
