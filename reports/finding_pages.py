"""Load the documentation page of a finding by id or cause, from ``docs/findings`` or from the wheel.

A page is Markdown: ``# ZPnnn cause``, a one-sentence summary in bold, then sections.
"""

import difflib
import re
from importlib import resources

from zprof.model.errors import BadInput
from zprof.model.findings import FINDING_IDS, Cause

_FOLDER = "findings"
_SUMMARY = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)
_MAX_SUGGESTIONS = 3


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
    matches = difflib.get_close_matches(normalized[:64], known, n=_MAX_SUGGESTIONS, cutoff=0.5)
    suggestions = ", ".join(word.upper() if word.startswith("zp") else word for word in matches)
    raise BadInput(
        f"no finding {name[:64]!r}",
        hint=f"did you mean {suggestions}? all: zprof explain --list"
        if matches
        else "zprof explain --list shows all",
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
