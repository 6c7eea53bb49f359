"""Parts of a document as one text that a forge takes: under 65,000 characters, and what was cut is said.

GitHub refuses a comment of more than 65,536 characters, whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.reports.markdown.blocks import folded

MOST_CHARACTERS = 65_000
#: Room for the line that says what was left out.
_ROOM = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a document: blocks that each stand alone, so that it may end after any of them.

    ``title``: zprof's own words; none for the head.  ``is_folded``: it opens on a click.
    """

    title: str = ""
    blocks: Sequence[str]
    is_folded: bool = False


def joined(parts: Sequence[Part], foot: str) -> str:
    """All parts in their order, of each as many blocks as there is room for; the foot is always there."""
    left = MOST_CHARACTERS - _ROOM - len(foot)
    texts, cut = [], []
    for part in parts:
        kept = _that_fit(part, left)
        if kept:
            texts.append(_text(part, kept))
            left -= len(texts[-1]) + 2
        if len(kept) < len(part.blocks):
            missing = f"{len(part.blocks) - len(kept)} of {len(part.blocks)} pieces"
            cut.append(f"{part.title or 'the head'} ({missing})")
    if cut:
        texts.append(f"*Left out, for a comment holds no more: {', '.join(cut)}. `-f json` has all of it.*")
    return "\n\n".join([*texts, foot]) + "\n"


def _that_fit(part: Part, room: int) -> list[str]:
    kept: list[str] = []
    for block in part.blocks:
        if len(_text(part, [*kept, block])) + 2 > room:
            continue  # a shorter one that comes later may have room
        kept.append(block)
    return kept


def _text(part: Part, blocks: Sequence[str]) -> str:
    content = "\n\n".join(blocks)
    if part.is_folded:
        return folded(part.title, content)
    return f"### {part.title}\n\n{content}" if part.title else content
