"""The text of events as libkineto lays it out, as templates with a %s for each value that changes.

Indented is the layout of libkineto's own printer; compact is what json tools make of it.
"""

import re
from dataclasses import dataclass

_LOOSE = re.compile(r'\s*\n\s*|(?<=":) (?=["\d\[{%-])|(?<=,) (?=")')


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How files are laid out."""

    indented: bool = True

    def complete(self, category: str, name: str, pid: str, tid: str, *arguments: str) -> str:
        """A complete event; the first two values are ts and dur, then those of the arguments."""
        head = f'"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {pid}, "tid": {tid}'
        args = ",\n      ".join(arguments)
        body = f',\n    "args": {{\n      {args}\n    }}' if arguments else ""
        return self.fitted(f'  {{\n    {head},\n    "ts": %s, "dur": %s{body}\n  }}')

    def flow(self, ends: bool, pid: str, tid: str) -> str:
        """One end of an arrow from a call to what it launched; values: id and ts."""
        phase, point = ("f", ', "bp": "e"') if ends else ("s", "")
        return self.fitted(
            f'  {{\n    "ph": "{phase}", "id": %s, "pid": {pid}, "tid": {tid}, "ts": %s,\n'
            f'    "cat": "ac2g", "name": "ac2g"{point}\n  }}'
        )

    def named(self, what: str, pid: str, tid: str, key: str, value: str) -> str:
        """A metadata event; value: ts."""
        return self.fitted(
            f'  {{\n    "name": "{what}", "ph": "M", "ts": %s, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      "{key}": {value}\n    }}\n  }}'
        )

    def fitted(self, template: str) -> str:
        """A template in this layout."""
        return template if self.indented else _LOOSE.sub("", template)


def quoted(text: str) -> str:
    """JSON text of a name, safe within a template."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
