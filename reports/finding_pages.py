"""The pages of the findings: ``docs/findings``, which the wheel holds too, found by id or by cause.

A page is Markdown: ``# ZPnnn cause``, a bold claim, then sections.
"""

import difflib
import re
from importlib import resources

from zprof.model.errors import BadInput
from zprof.model.findings import FINDING_IDS, Cause

_FOLDER = "findings"
_CLAIM = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)
_MOST_NEAR = 3


def cause_of(name: str) -> Cause:
    """Return the cause of an id or a name, in any case, with - or _.

    Raises:
        BadInput: there is none; the hint has the nearest ones.
    """
    wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
    known = {cause.value: cause for cause in FINDING_IDS}
    known |= {identifier.lower(): cause for cause, identifier in FINDING_IDS.items()}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted[:64], known, n=_MOST_NEAR, cutoff=0.5)
    meant = ", ".join(word.upper() if word.startswith("zp") else word for word in near)
    raise BadInput(
        f"no finding {name[:64]!r}",
        hint=f"did you mean {meant}? all: zprof explain --list" if near else "zprof explain --list shows all",
    )


def page(cause: Cause) -> str:
    """Return the page of a finding as Markdown.

    Raises:
        BadInput: this version has none.
    """
    identifier = FINDING_IDS[cause]
    try:
        return _file(identifier)
    except OSError:
        raise BadInput(
            f"{identifier} {cause.value} has no page in this version", hint="zprof explain --list shows all"
        ) from None


def claims() -> dict[Cause, str]:
    """Return each cause by id with the claim of its page in one line; empty if it has no page."""
    ordered = sorted(FINDING_IDS, key=FINDING_IDS.__getitem__)
    return {cause: _claim(cause) for cause in ordered}


def _claim(cause: Cause) -> str:
    try:
        match = _CLAIM.search(_file(FINDING_IDS[cause]))
    except OSError:
        return ""
    return " ".join(match[1].split()) if match else ""


def _file(identifier: str) -> str:
    return (resources.files("zprof") / _FOLDER / f"{identifier}.md").read_text(encoding="utf-8")
