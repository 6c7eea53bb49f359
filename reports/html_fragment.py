"""Render a page as HTML inside somebody else's page, such as the output of a notebook cell.

No scripts, nothing is loaded, and the style sheet applies to this fragment only. Zoomable charts are left
out.
"""

import hashlib
import re
from collections.abc import Iterator
from importlib import resources

from markupsafe import Markup
from msgspec.structs import replace

from zprof.reports.html import make_environment
from zprof.reports.page import AreaChart, Page

_SCOPE = ".zprof"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PRELUDE = re.compile(r"\s*([^{}]*?)\s*([{}])")
#: A comma between selectors, as opposed to one inside ``:is(a, b)``.
_SELECTOR_COMMA = re.compile(r",(?![^(]*\))")


def render_html_fragment(page: Page) -> str:
    """Return the page's style, verdict and sections as one element."""
    sections = (
        replace(section, blocks=tuple(b for b in section.blocks if not isinstance(b, AreaChart)))
        for section in page.sections
    )
    page = replace(page, sections=tuple(section for section in sections if section.blocks))
    digest = hashlib.sha256(repr(page).encode("utf-8", errors="backslashreplace")).hexdigest()
    return (
        make_environment()
        .get_template("fragment.html.j2")
        .render(
            page=page,
            style=Markup(
                scope_style(
                    (resources.files("zprof.reports") / "templates" / "style.css").read_text(encoding="utf-8")
                )
            ),
            prefix=f"zprof-{digest[:8]}-",
        )
        .strip()
        + "\n"
    )


def scope_style(style: str, scope: str = _SCOPE) -> str:
    """Return a style sheet whose rules apply inside ``scope`` only; ``:root`` and ``body`` become it."""
    return "".join(_scope_rules(_COMMENT.sub("", style), scope))


def _scope_rules(style: str, scope: str) -> Iterator[str]:
    """Yield the style sheet in parts: rules that hold declarations get the scope, ``@media`` does not."""
    at = 0
    for match in _PRELUDE.finditer(style):
        if match.start() < at:
            continue
        prelude, sign = match.groups()
        if sign == "}":
            yield "}\n"
            at = match.end()
        elif prelude.startswith("@"):
            yield f"{prelude} {{\n"
            at = match.end()
        else:
            end = style.index("}", match.end()) + 1
            selectors = (_scope_selector(part.strip(), scope) for part in _SELECTOR_COMMA.split(prelude))
            yield f"{', '.join(selectors)} {{{style[match.end() : end]}\n"
            at = end


def _scope_selector(selector: str, scope: str) -> str:
    for whole in (":root", "body"):
        if selector == whole or selector.startswith((f"{whole}:", f"{whole} ")):
            return scope + selector.removeprefix(whole)
    return f"{scope} {selector}"
