"""Load the documentation page of a finding by id or cause, from ``docs/findings`` or from the wheel.

A page is Markdown: ``# ZPnnn cause``, what the cause means in bold, then sections.
"""

from importlib import resources

from zprof.model.errors import BadInput
from zprof.model.findings import Cause
from zprof.model.suggestions import ask_for_name

_FOLDER = "findings"


def find_cause(name: str) -> Cause:
    """Return the cause with this id or name; case is ignored, and - and _ are equal.

    Raises:
        BadInput: the name is unknown; the hint lists the closest names.
    """
    normalized = name.strip().lower().replace("-", "_").replace(" ", "_")
    known = {cause.value: cause for cause in Cause}
    known |= {cause.finding_id.lower(): cause for cause in Cause}
    if normalized in known:
        return known[normalized]
    question = ask_for_name(normalized, [*(cause.finding_id for cause in Cause), *Cause])
    raise BadInput(
        f"no finding {name[:64]!r}",
        hint=f"{question} all: zprof explain --list" if question else "zprof explain --list shows all",
    )


def page(cause: Cause) -> str:
    """Read the page of a finding as Markdown.

    Raises:
        BadInput: this version has no page for the cause.
    """
    identifier = cause.finding_id
    try:
        return (resources.files("zprof") / _FOLDER / f"{identifier}.md").read_text(encoding="utf-8")
    except OSError:
        raise BadInput(
            f"{identifier} {cause.value} has no page in this version", hint="zprof explain --list shows all"
        ) from None
