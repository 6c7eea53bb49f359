"""A page's values into its document: templates, escaping, style and scripts.

Whatever a template inserts is made printable and then escaped, here and nowhere else; only this package's own
style and scripts, plotly's script, and data in JSON without ``<`` go in as they stand.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from zprof.model.printable import printable
from zprof.reports.html.assets import Script, data_script, own_script, plotly_script, policy, style
from zprof.reports.html.blocks import Page


def document(page: Page) -> str:
    """The page as text; plotly is in it once where there is a chart that needs it, else not at all."""
    scripts: tuple[Script, ...] = ()
    data = Markup("")
    if page.timeline is not None:
        scripts = (plotly_script(), own_script())
        data = data_script(page.timeline.data)
    template = _environment().get_template("page.html.j2")
    text = template.render(
        page=page,
        style=style(),
        scripts=[script.text for script in scripts],
        data=data,
        policy=policy(scripts),
    )
    return text.rstrip("\n") + "\n"


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("zprof.reports.html", "templates"),
        autoescape=True,
        finalize=_inert,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _inert(value: Any) -> Any:
    """Text without characters that steer anything; what is markup already stays."""
    return value if isinstance(value, Markup) else printable(value)
