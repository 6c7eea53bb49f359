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
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
#: Long, and not a word of a program: those are of one case, and have no digits.
_TOKEN = re.compile(r"(?=[\w-]*(?:\d|[a-z][\w-]*[A-Z]|[A-Z][\w-]*[a-z]))[\w-]{20,}")
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
        for name in sorted(self._given, key=len, reverse=True):
            if len(name) >= _LEAST_LETTERS:
                text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._given[name], text)
        return text

    def scrubbed(self, text: str) -> str:
        """The same, and without paths, addresses, and what looks like a token."""
        text = self.replaced(text)
        for pattern, hidden in ((_ADDRESS, "(address)"), (_PATH, "(path)"), (_TOKEN, "(hidden)")):
            text = pattern.sub(hidden, text)
        return text

    @property
    def given(self) -> dict[str, str]:
        """Stand-ins by name."""
        return dict(self._given)
