"""The formats that a plan and a prediction can be written in; ``…_IN_FULL``: each assumption in full."""

from functools import partial

from zprof.model.json_tree import to_json
from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif_document import WhatIf
from zprof.reports.base import Format
from zprof.reports.plan_pages import html, markdown, text

_TEXT, _JSON, _MD, _HTML = (".txt", ".text"), (".json",), (".md", ".markdown"), (".html", ".htm")

PLANS: tuple[Format[Plan], ...] = (
    Format(name="text", suffixes=_TEXT, render=text.render_plan),
    Format(name="json", suffixes=_JSON, render=to_json),
    Format(name="md", suffixes=_MD, render=markdown.render_plan),
    Format(name="html", suffixes=_HTML, render=html.render_plan),
)
WHATIFS: tuple[Format[WhatIf], ...] = (
    Format(name="text", suffixes=_TEXT, render=text.render_whatif),
    Format(name="json", suffixes=_JSON, render=to_json),
    Format(name="md", suffixes=_MD, render=markdown.render_whatif),
    Format(name="html", suffixes=_HTML, render=html.render_whatif),
)
#: Only text has them short; the other formats have them in full anyway.
PLANS_IN_FULL: tuple[Format[Plan], ...] = (
    Format(name="text", suffixes=_TEXT, render=partial(text.render_plan, everything=True)),
    *PLANS[1:],
)
WHATIFS_IN_FULL: tuple[Format[WhatIf], ...] = (
    Format(name="text", suffixes=_TEXT, render=partial(text.render_whatif, everything=True)),
    *WHATIFS[1:],
)
