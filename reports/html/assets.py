"""What stands in the page unescaped: style, scripts with their hashes, and data for them.

Scripts are plotly's, as its package brings it, and this package's own.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from zprof.model.json_tree import to_tree
from zprof.reports.html.blocks import TimelineData

_TEMPLATES = "zprof.reports.html"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that may run, because the page's policy names its hash."""

    text: Markup

    @property
    def source(self) -> str:
        """Its hash as a policy writes it."""
        digest = hashlib.sha256(str(self.text).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def policy(scripts: Sequence[Script]) -> str:
    """The Content-Security-Policy: nothing is loaded, only these scripts run.

    Inline styles are allowed: plotly places its labels with them.
    """
    allowed = " ".join(script.source for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def plotly_script() -> Script:
    """plotly.js, read from the installed package."""
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return Script(Markup(text))


def own_script() -> Script:
    """The script that puts a chart which can be zoomed in the place of a picture."""
    return Script(Markup(_file("script.js")))


def style() -> Markup:
    """The style sheet."""
    return Markup(_file("style.css"))


def data_script(data: TimelineData) -> Markup:
    """Data as JSON that cannot end the element which holds it, whatever its names are."""
    text = json.dumps(to_tree(data), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _file(name: str) -> str:
    return (resources.files(_TEMPLATES) / "templates" / name).read_text(encoding="utf-8")
