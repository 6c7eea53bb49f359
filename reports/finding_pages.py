"""Load the documentation page of a finding by id or cause, from ``docs/findings`` or from the wheel.

A page is Markdown: ``# ZPnnn cause``, a one-sentence summary in bold, then sections.
"""

import re
from importlib import resources

from zprof.model.errors import BadInput
from zprof.model.findings import FINDING_IDS, Cause
from zprof.model.suggestions import ask_for_name

_FOLDER = "findings"
_SUMMARY = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)


def find_cause(name: str) -> Cause:
    """Return the cause with this id or name; case is ignored, and - and _ are equal.

    Raises:
        BadInput: the name is unknown; the hint lists the closest names.
    """
    normalized = name.strip().lower().replace("-", "_").replace(" ", "_")
    known = {cause.value: cause for cause in FINDING_IDS}
    known |= {identifier.lower(): cause for cause, identifier in FINDING_IDS.items()}
    if normalized in known:
        return known[normalized]
    question = ask_for_name(normalized, [*FINDING_IDS.values(), *FINDING_IDS])
    raise BadInput(
        f"no finding {name[:64]!r}",
        hint=f"{question} all: zprof explain --list" if question else "zprof explain --list shows all",
    )


def page(cause: Cause) -> str:
    """Read the page of a finding as Markdown.

    Raises:
        BadInput: this version has no page for the cause.
    """
    identifier = FINDING_IDS[cause]
    try:
        return _read_page_file(identifier)
    except OSError:
        raise BadInput(
            f"{identifier} {cause.value} has no page in this version", hint="zprof explain --list shows all"
        ) from None


def claims() -> dict[Cause, str]:
    """Return the one-line summary of each cause, sorted by id; empty if the cause has no page."""
    ordered = sorted(FINDING_IDS, key=FINDING_IDS.__getitem__)
    return {cause: _read_summary(cause) for cause in ordered}


def _read_summary(cause: Cause) -> str:
    try:
        match = _SUMMARY.search(_read_page_file(FINDING_IDS[cause]))
    except OSError:
        return ""
    return " ".join(match[1].split()) if match else ""


def _read_page_file(identifier: str) -> str:
    return (resources.files("zprof") / _FOLDER / f"{identifier}.md").read_text(encoding="utf-8")
