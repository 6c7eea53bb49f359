"""Stand-ins for the names of a program, and texts with nothing in them but words that are known to be ours.

The same name gets the same stand-in in all parts of a bundle, so that support can tell things apart and the
owner, who has the list, can translate.

A text is taken apart at its blanks.  What stays: stand-ins, words of zprof's own texts
(:mod:`~zprof.integrations.bundle.own_words`), numbers, versions, units behind a number, and public words
(:mod:`~zprof.integrations.bundle.public_words`).  All else is hidden, of whatever form it is: names are not
looked for, so none can be overlooked.  A name that is one of those words stays: it says nothing.
"""

import re

from zprof.integrations.bundle.own_words import OwnWords, bare
from zprof.integrations.bundle.public_words import PUBLIC, UNITS

_HIDDEN = "(hidden)"
_HIDDEN_TWICE = re.compile(r"\(hidden\)(?: +\(hidden\))+")
_NUMBER = re.compile(r"[-+±~≥≤<>]?\d{1,7}(?:\.\d{1,6})?(?:e[-+]?\d{1,2}|[x%])?|\d{1,6}[-/]\d{1,6}", re.ASCII)
_VERSION = re.compile(
    r"\d{1,4}(?:\.\d{1,4}){1,2}(?:(?:a|b|rc|\.dev|\.post)\d{1,4})?(?:\+(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){0,2}))?",
    re.ASCII,
)
_STAND_IN = re.compile(r"[a-z]+-\d{1,9}", re.ASCII)
_FINDING = re.compile(r"(?:docs/findings/)?ZP\d{3}(?:\.md)?", re.ASCII)
_PARTS = re.compile(r"[,=():;^]+")
_MARKS = re.compile(r"[!-/:-@\[-`{-~…→±≥≤]{0,3}")
#: Of a text: no sentence is longer.
_MOST_LETTERS = 2000
_LEAST_LETTERS = 3


class Names:
    """Gives out stand-ins, and hides what is not ``own``."""

    def __init__(self, own: OwnWords | None = None) -> None:
        self._own = own or OwnWords()
        self._given: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def of(self, name: str, kind: str) -> str:
        """The stand-in of a name: ``module-3``.  An empty name stays empty."""
        if not name:
            return ""
        if name not in self._given:
            self._count[kind] = self._count.get(kind, 0) + 1
            self._given[name] = f"{kind}-{self._count[kind]}"
        return self._given[name]

    def scrubbed(self, text: str) -> str:
        """A text with stand-ins for the names that have one, and without all else that is not ours."""
        cut = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} …"
        lines = cut.replace("\r", "\n").split("\n")
        return "\n".join(line if line in self._own.lines else self._line(line) for line in lines)

    def is_own(self, word: str) -> bool:
        """Whether it is a word, or the name of a field, of zprof's."""
        return word in self._own.words or word in self._own.fields

    @property
    def given(self) -> dict[str, str]:
        """Stand-ins by name."""
        return dict(self._given)

    def _line(self, line: str) -> str:
        chunks = self._replaced(line).split(" ")
        pairs = zip(chunks, ["", *chunks], strict=False)
        shown = [chunk if self._stays(chunk, before) else self._hidden(chunk) for chunk, before in pairs]
        return _HIDDEN_TWICE.sub(_HIDDEN, " ".join(shown))

    def _replaced(self, line: str) -> str:
        """Names of several words, or within marks.  One that is a word of ours would only be given away."""
        inside = [
            name
            for name in self._given
            if len(name) >= _LEAST_LETTERS and name in line and not self.is_own(name)
        ]
        if not inside:
            return line
        longest_first = "|".join(map(re.escape, sorted(inside, key=len, reverse=True)))
        return re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", lambda found: self._given[found[0]], line)

    def _hidden(self, chunk: str) -> str:
        return self._given.get(bare(chunk), _HIDDEN)

    def _stays(self, chunk: str, before: str) -> bool:
        core = bare(chunk)
        if core in UNITS:
            return _is_number(bare(before))
        return self._is_ours(core) or all(map(self._is_ours, _PARTS.split(core)))

    def _is_ours(self, word: str) -> bool:
        own = self._own.words
        if word in own or word in PUBLIC or _is_number(word) or _MARKS.fullmatch(word):
            return True
        if word.isupper() and word.lower() in own:
            return True
        if _STAND_IN.fullmatch(word):
            return word in self._given.values()
        return bool(_VERSION.fullmatch(word) or _FINDING.fullmatch(word))


def _is_number(word: str) -> bool:
    return bool(_NUMBER.fullmatch(word))
