"""Render a page as a single self-contained HTML file that works offline and without JavaScript.

Everything inserted by a template is made printable, shortened and escaped here and nowhere else. Only the
package's style sheet, scripts and pages of findings, and JSON data without ``<``, are inserted verbatim.  A
Content-Security-Policy blocks all loading, and allows only this style sheet and these scripts, by hashes.

A fragment is for another page, such as the output of a notebook cell: it has no scripts, its style sheet
applies to itself only, and zoomable charts and pages of findings are omitted.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.model.quantities import Value, format_value
from zprof.model.step_overview import OverviewLane
from zprof.reports.finding_pages import read_page
from zprof.reports.page import AreaChart, LegendEntry, LineChart, Page, StepChart
from zprof.reports.table import MAX_ROWS, UNKNOWN, Cell, Kind, Marked, Table, format_cell
from zprof.reports.text import format_omission, select_rows

if TYPE_CHECKING:
    from markdown_it.token import Token

#: Style classes of chart lines, in order.
LINE_COLOURS = ("series-a", "series-b", "series-c", "series-d")
MAX_NAME, MAX_SENTENCE = 160, 2_000
_MIN_SORTED_ROWS = 3
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SCOPE = ".zprof"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PRELUDE = re.compile(r"\s*([^{}]*?)\s*([{}])")
#: A comma between selectors, not inside ``:is(a, b)``.
_SELECTOR_COMMA = re.compile(r",(?![^(]*\))")


def render_html(page: Page) -> str:
    """Return the page, with a script for its code and tables, and one for each chart that it has."""
    scripts = [("", "", Markup(_read_file("page.js")))]
    for block in (block for section in page.sections for block in section.blocks):
        if isinstance(block, AreaChart):
            scripts.append(("timeline-data", build_chart_data(block), Markup(_read_file("memory_chart.js"))))
        elif isinstance(block, StepChart):
            scripts.append(("step-data", build_step_data(block), Markup(_read_file("step_chart.js"))))
    style = _read_file("style.css")
    environment = make_environment()
    environment.filters |= {"explained": render_explanation, "sort_kinds": _list_sort_kinds}
    sources = " ".join(_format_source(script) for _, _, script in scripts)
    text = environment.get_template("page.html.j2").render(
        page=page,
        style=Markup(style),
        scripts=scripts,
        policy=(
            f"default-src 'none'; script-src {sources}; style-src {_format_source(style)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
    )
    return text.rstrip("\n") + "\n"


def make_environment() -> Environment:
    """Return the template environment, which sanitizes and escapes everything inserted."""
    environment = Environment(
        loader=PackageLoader("zprof.reports", "templates"),
        autoescape=True,
        finalize=_sanitize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["line_legend"] = _build_line_legend
    first_cards: dict[str, str] = {}
    # Anchor of the first card on a page that explains a finding: only this card contains the explanation.
    environment.globals["first_card"] = first_cards.setdefault
    environment.filters |= {
        "explained": lambda finding: "",
        "short": _shorten,
        "macro": _get_macro_name,
        "left_out": _format_omission,
        "unmarked": _remove_mark,
        "number": _format_raw_number,
        "sort_kinds": lambda table: ("",) * len(table.columns),
        "shown_rows": lambda table: select_rows(table, MAX_ROWS),
    }
    return environment


def _sanitize(value: Any) -> Any:
    """Return text without control characters and numbers formatted; leave markup unchanged."""
    if isinstance(value, Value):
        return format_value(value, UNKNOWN)
    return value if isinstance(value, Markup) else shorten(printable(value), MAX_SENTENCE)


def _shorten(value: object, width: int = MAX_NAME) -> str:
    """Shorten a name; the full name is in the JSON."""
    return shorten(printable(value), width)


def _remove_mark(cell: Cell) -> Cell:
    """Return the text of a marked cell; the text conveys the mark too."""
    return cell.text if isinstance(cell, Marked) else cell


def _format_raw_number(cell: Cell) -> str:
    """Return the number of a cell without its unit, to sort by; empty if it is unknown or there is none."""
    return f"{cell.number:.9g}" if isinstance(cell, Value) and cell.number is not None else ""


def _list_sort_kinds(table: Table) -> tuple[str, ...]:
    """Return how each column sorts the rows: ``number``, ``text``, or empty for a column without an order.

    Rows that belong together are not sorted, nor rows whose numbers have several units.
    """
    rows = select_rows(table, MAX_ROWS)
    kinds = []
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in rows if row.cells[index] not in ("", UNKNOWN)]
        units = {cell.unit if isinstance(cell, Value) else None for cell in cells}
        if column.is_number:
            kinds.append("number" if len(units) == 1 and None not in units else "")
        else:
            kinds.append("text" if column.title and column.kind is not Kind.BAR else "")
    has_order = "number" in kinds or not any(column.is_number for column in table.columns)
    is_nested = any((row.short or format_cell(row.cells[0])).startswith((" ", "= ")) for row in rows)
    is_long = sum(not row.total for row in rows) >= _MIN_SORTED_ROWS
    return tuple(kinds) if has_order and is_long and not is_nested else ("",) * len(kinds)


def _get_macro_name(block: object) -> str:
    """Return the name of the macro that renders a block, such as ``key_figures`` for ``KeyFigures``."""
    return _CAPITALS.sub("_", type(block).__name__).lower()


def _format_omission(table: Table) -> str:
    return format_omission(min(len(table.rows), MAX_ROWS), table.total, table.noun).replace(
        "-f json", "zprof report RUN -f json"
    )


def render_explanation(finding: str) -> Markup:
    """Return the sections of the page of a finding, which load nothing; empty if this version has no page."""
    from markdown_it import MarkdownIt

    try:
        _, _, page = read_page(finding).partition("\n")
    except BadInput:
        return Markup()

    def open_table(*_: object) -> str:
        name = escape(f"Table of {finding}")
        return (
            f'<div class="scroll" tabindex="0" role="group" aria-label="{name}">'
            f'<table><caption class="unseen">{name}</caption>\n'
        )

    def draw_code(_: object, tokens: "Sequence[Token]", index: int, *__: object) -> str:
        code = escape(tokens[index].content)
        return f'<div class="code"><pre tabindex="0"><code>{code}</code></pre></div>\n'

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.add_render_rule("table_open", open_table)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("fence", draw_code)
    parser.add_render_rule("code_block", draw_code)
    tokens = parser.parse(page)
    for token in tokens:
        token.attrs.pop("style", None)
        if token.tag == "h2":
            token.tag = "h4"
        elif token.type == "th_open":
            token.attrSet("scope", "col")
        token.children = _drop_local_links(token.children) if token.children else token.children
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _drop_local_links(tokens: "Sequence[Token]") -> "list[Token]":
    """Return inline tokens without links to other files, whose text stays; the others send no referrer."""
    kept, is_kept = [], True
    for token in tokens:
        if token.type == "link_open":
            is_kept = str(token.attrGet("href")).startswith(("https://", "http://"))
            token.attrSet("rel", "noreferrer")
        if is_kept or token.type not in ("link_open", "link_close"):
            kept.append(token)
    return kept


def _build_line_legend(chart: LineChart) -> tuple[LegendEntry, ...]:
    return tuple(
        LegendEntry(colour="series-muted" if line.is_muted else colour, letter=str(number), name=line.name)
        for number, (colour, line) in enumerate(zip(LINE_COLOURS, chart.lines, strict=False), start=1)
    )


def build_chart_data(chart: AreaChart) -> Markup:
    """Return the chart points as JSON that cannot close its script element."""
    tree = {
        "time_ms": chart.time_ms,
        "end_ms": chart.end_ms,
        "unit": chart.unit,
        "series": [{"name": one.name, "values": one.values} for one in chart.series],
        "steps": chart.steps_ms,
        "phases": chart.phases_ms,
        "peak": (chart.peak_ms, chart.peak.text),
    }
    return _dump_data(tree)


def build_step_data(chart: StepChart) -> Markup:
    """Return the slices of a step chart as JSON that cannot close its script element.

    A lane's slices are flat: kind, time since the end of the slice before, length, and message since the
    message before. A message: kind, bytes (-1 if unknown), start, length, last rank (-1 if unknown).
    """
    overview = chart.overview
    words: dict[str, int] = {}

    def number(word: str) -> int:
        return words.setdefault(_shorten(word), len(words))

    rows = [
        {
            "name": _shorten(row.name),
            "rank": entry.rank,
            "lanes": [
                {
                    "name": _shorten(lane.full_name),
                    "top": lane.top,
                    "height": lane.height,
                    "slices": _pack_slices(source),
                }
                for lane, source in zip(row.lanes, entry.lanes, strict=True)
            ],
            "messages": [
                value
                for message in entry.messages
                for value in (
                    number(message.kind),
                    -1 if message.bytes is None else message.bytes,
                    message.start_ns,
                    message.length_ns,
                    -1 if message.last_rank is None else message.last_rank,
                )
            ],
            "phases": [[start_ns, number(name)] for start_ns, name in entry.phases],
        }
        for row, entry in zip(chart.rows, overview.rows, strict=True)
    ]
    tree = {
        "length": overview.length_ns,
        "kinds": [[entry.colour, entry.name] for entry in chart.legend],
        "rows": rows,
        "arrows": [
            (each.start_ns, each.arrival_ns, drawn.start_top, drawn.end_top, _shorten(drawn.text))
            for each, drawn in zip(overview.arrows, chart.arrows, strict=True)
        ],
        "words": list(words),
    }
    return _dump_data(tree)


def _pack_slices(lane: OverviewLane) -> list[int]:
    packed: list[int] = []
    end = message = 0
    for kind, start, length, number in zip(
        lane.kinds, lane.starts_ns, lane.lengths_ns, lane.messages, strict=True
    ):
        packed += (kind, start - end, length, number - message)
        end, message = start + length, number
    return packed


def _dump_data(tree: object) -> Markup:
    text = json.dumps(tree, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _format_source(text: str) -> str:
    """Return the source expression that allows exactly this inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def _read_file(name: str) -> str:
    return (resources.files("zprof.reports") / "templates" / name).read_text(encoding="utf-8")


def render_html_fragment(page: Page) -> str:
    """Return the page's style, verdict and sections as one element."""
    sections = (
        replace(section, blocks=tuple(b for b in section.blocks if not isinstance(b, AreaChart | StepChart)))
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
    """Return the style sheet with all rules limited to ``scope``, which replaces ``:root`` and ``body``."""
    return "".join(_scope_rules(_COMMENT.sub("", style), scope))


def _scope_rules(style: str, scope: str) -> Iterator[str]:
    """Yield the style sheet in parts: rules with declarations get the scope, ``@media`` does not."""
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
