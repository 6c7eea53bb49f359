"""Stand-ins for the names of a program: modules, groups, hosts, runs.

The same name gets the same stand-in in all parts of a bundle, so that support can tell things apart and the
owner, who has the list, can translate.
"""

import re

_PATH = re.compile(
    r"(?<![\w.])(?:~|\.{1,2})?/[\w.+%=@-]+[^\s,;'\"()]*"  # from a root, or from here
    r"|[\w.+%=@-]+(?:/[\w.+%=@-]+){2,}"  # three parts; two are a rate
    r"|[\w.+%=@-]+/[\w.+%=@-]+\.\w{1,6}\b"
    r"|\b[A-Za-z]:\\[^\s,;'\"()]*"
)
#: Files are often named after hosts and projects.  A reason begins with the name, shortened or with spaces.
_FILE = re.compile(
    r"^[^:]+(?:\.(?:json|trace|gz|zst|pt|pkl|pickle)|…)(?=: )"
    r"|[^\s,;:'\"()]+\.(?:json|trace|gz|zst|pt|pkl|pickle)\b"
)
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_LONG = re.compile(r"[\w-]{20,}")
_HIDDEN = ((_ADDRESS, "(address)"), (_PATH, "(path)"), (_FILE, "(file)"))
#: Of a text: no sentence is longer, and the patterns take the square of the length of a word.
_MOST_LETTERS = 2000
_LEAST_LETTERS = 3


class Names:
    """Gives out stand-ins."""

    def __init__(self) -> None:
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

    def replaced(self, text: str) -> str:
        """A text with the names in it replaced that have a stand-in; those of one or two letters stay."""
        inside = [name for name in self._given if len(name) >= _LEAST_LETTERS and name in text]
        if not inside:
            return text
        longest_first = "|".join(map(re.escape, sorted(inside, key=len, reverse=True)))
        return re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", lambda found: self._given[found[0]], text)

    def scrubbed(self, text: str) -> str:
        """The same, and without paths, names of files, addresses, and what looks like a token."""
        text = self.replaced(text)
        text = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} …"
        for pattern, hidden in _HIDDEN:
            text = pattern.sub(hidden, text)
        return _LONG.sub(_without_tokens, text)

    @property
    def given(self) -> dict[str, str]:
        """Stand-ins by name."""
        return dict(self._given)


def _without_tokens(found: re.Match[str]) -> str:
    """Words of a program are of one case and have no digits; what is long and is none is hidden."""
    word = found[0]
    is_word = word in (word.lower(), word.upper()) and not any(letter.isdigit() for letter in word)
    return word if is_word else "(hidden)"
