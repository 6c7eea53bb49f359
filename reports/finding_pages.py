"""Load the documentation page of a finding, from ``docs/findings`` or from the wheel.

A page is Markdown: ``# ZPnnn cause``, the meaning of the cause in bold, then sections.
"""

import contextlib
from importlib import resources

from zprof.base.errors import BadInput, ask_for_name
from zprof.model.findings import IndexEntry, read_index

_FOLDER = "findings"


def find_cause(name: str) -> IndexEntry:
    """Return the cause with this id or name, ignoring case and treating - and _ as equal.

    Raises:
        BadInput: the name is unknown; the hint lists the closest names.
    """
    normalized = name.strip().lower().replace("-", "_").replace(" ", "_")
    for entry in read_index():
        if normalized in (entry.name, entry.id.lower()):
            return entry
    names = [*(entry.id for entry in read_index()), *(entry.name for entry in read_index())]
    question = ask_for_name(normalized, names)
    raise BadInput(
        f"no finding {name[:64]!r}",
        hint=f"{question} all: zprof explain --list" if question else "zprof explain --list shows all",
    )


def read_page(identifier: str) -> str:
    """Read the page of a finding as Markdown; the id may come from an untrusted report.

    Raises:
        BadInput: this version has no page for the id.
    """
    if any(entry.id == identifier for entry in read_index()):
        with contextlib.suppress(OSError):
            return (resources.files("zprof") / _FOLDER / f"{identifier}.md").read_text(encoding="utf-8")
    raise BadInput(f"{identifier[:64]} has no page in this version", hint="zprof explain --list shows all")
