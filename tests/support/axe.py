"""What axe-core, a checker of accessibility, finds in a page that is open in a browser."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.browser import Tab

_PACKAGE = "axe_core_python"
#: The impacts that nobody should meet.
_SERIOUS = ("serious", "critical")

needs_axe = pytest.mark.skipif(
    importlib.util.find_spec(_PACKAGE) is None, reason=f"{_PACKAGE} is not installed"
)


def find_serious(tab: Tab) -> list[tuple[str, list[str]]]:
    """Return the rules that the open page breaks, each with the start of its first elements."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    script = (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    tab.call("Runtime.evaluate", expression=script)
    found = tab.value(
        "axe.run(document, { resultTypes: ['violations'] }).then(r => JSON.stringify(r.violations))"
    )
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in json.loads(found)
        if each["impact"] in _SERIOUS
    ]
