"""Define all keys in one table, the source of bindings, footer and help."""

from enum import StrEnum

from msgspec import Struct
from textual.binding import Binding


class Where(StrEnum):
    """The screen or widget where a key works."""

    EVERYWHERE = "everywhere"
    TABLE = "tables"
    TIMELINE = "timeline"
    RANKS = "ranks"
    COMPARE = "compare"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    PLAN = "plan"
    LIVE = "live view"
    POPUP = "popups"


class Key(Struct, frozen=True, kw_only=True):
    """A key binding: one or more Textual keys with the same action.

    ``label``: the key as shown to users, if it differs from Textual's name. ``has_priority``: the binding
    takes precedence over bindings of focused widgets.
    """

    keys: str
    action: str
    help: str
    label: str = ""
    where: Where = Where.EVERYWHERE
    footer: str = ""
    has_priority: bool = False

    @property
    def written(self) -> str:
        """Return the key as shown to users."""
        return self.label or self.keys


KEYS: tuple[Key, ...] = (
    Key(keys="1", action="show('overview')", help="overview: verdict, ledger, findings"),
    Key(keys="2", action="show('memory')", help="memory by tenant"),
    Key(keys="3", action="show('communication')", help="collectives: exposed and hidden time"),
    Key(keys="4", action="show('timeline')", help="timeline of one step on one rank"),
    Key(keys="5", action="show('ranks')", help="heat map of ranks and steps"),
    Key(keys="6", action="show('compare')", help="compare this run with its baseline"),
    Key(keys="7", action="show('plan')", help="predict the effect of another stage, link or setting"),
    Key(
        keys="slash",
        label="/",
        action="search",
        help="search causes, units and ranks, and filter the focused table",
        footer="search",
    ),
    Key(keys="question_mark", label="?", action="explain", help="explain the focused item", footer="help"),
    Key(keys="f1", label="F1", action="help", help="list all keys", footer="keys"),
    Key(keys="r", action="pick_rank", help="pick a rank"),
    Key(keys="t", action="pick_step", help="pick a step"),
    Key(keys="left_square_bracket", label="[", action="step(-1)", help="previous step"),
    Key(keys="right_square_bracket", label="]", action="step(1)", help="next step"),
    Key(keys="b", action="baseline", help="choose a baseline run"),
    Key(keys="g", action="gaps", help="list what could not be measured", footer="gaps"),
    Key(keys="y", action="copy_markdown", help="copy the focused row as Markdown"),
    Key(keys="Y", action="copy_json", help="copy the focused row as JSON"),
    Key(keys="e", action="export", help="write the report to a file", footer="export"),
    Key(keys="o", action="perfetto", help="write this step as a Perfetto trace"),
    Key(keys="ctrl+p", action="command_palette", help="command palette: all commands and themes"),
    Key(keys="q", action="quit", help="quit", footer="quit"),
    Key(keys="ctrl+c", action="quit", help="quit, even while typing", has_priority=True),
    Key(keys="tab", action="app.focus_next", help="next pane"),
    Key(keys="shift+tab", action="app.focus_previous", help="previous pane"),
    Key(
        keys="enter", action="open", help="open the selected number or row", where=Where.TABLE, footer="open"
    ),
    Key(
        keys="escape",
        label="esc",
        action="all_rows",
        help="clear the filter",
        where=Where.TABLE,
    ),
    Key(keys="s", action="sort", help="sort by the next column", where=Where.TABLE, footer="sort"),
    Key(keys="S", action="reverse", help="reverse the sort order", where=Where.TABLE),
    Key(keys="h", action="cursor_left", help="move left", where=Where.TABLE),
    Key(keys="j", action="cursor_down", help="move down", where=Where.TABLE),
    Key(keys="k", action="cursor_up", help="move up", where=Where.TABLE),
    Key(keys="l", action="cursor_right", help="move right", where=Where.TABLE),
    Key(keys="m", action="next_table", help="next table", where=Where.MEMORY, footer="table"),
    Key(keys="up,k", label="up, k", action="across(-1)", help="previous rank", where=Where.MEMORY),
    Key(keys="down,j", label="down, j", action="across(1)", help="next rank", where=Where.MEMORY),
    Key(
        keys="left,h",
        label="left, h",
        action="along(-1)",
        help="previous tenant or point in time",
        where=Where.MEMORY,
    ),
    Key(
        keys="right,l",
        label="right, l",
        action="along(1)",
        help="next tenant or point in time",
        where=Where.MEMORY,
    ),
    Key(
        keys="enter",
        action="open_part",
        help="open the selected tenant or point in time",
        where=Where.MEMORY,
        footer="open",
    ),
    Key(
        keys="m",
        action="next_part",
        help="show message sizes, units and the link fit",
        where=Where.COMMUNICATION,
        footer="more",
    ),
    Key(
        keys="d",
        action="differences",
        help="toggle: differences only, or everything",
        where=Where.COMPARE,
        footer="differs",
    ),
    Key(
        keys="n",
        action="per_token",
        help="toggle: time per step, or rank time per token",
        where=Where.COMPARE,
        footer="per token",
    ),
    Key(keys="x", action="swap", help="swap A and B on all screens", where=Where.COMPARE),
    Key(keys="up,k", label="up, k", action="along(-1)", help="previous knob", where=Where.PLAN),
    Key(keys="down,j", label="down, j", action="along(1)", help="next knob", where=Where.PLAN),
    Key(keys="left,h", label="left, h", action="turn(-1)", help="decrease the value", where=Where.PLAN),
    Key(keys="right,l", label="right, l", action="turn(1)", help="increase the value", where=Where.PLAN),
    Key(keys="enter", action="open", help="explain the knob", where=Where.PLAN, footer="open"),
    Key(
        keys="x",
        action="reset",
        help="reset this knob to the measured value",
        where=Where.PLAN,
        footer="reset",
    ),
    Key(keys="X", action="reset_all", help="reset all knobs", where=Where.PLAN, footer="all"),
    Key(
        keys="f",
        action="layouts",
        help="layouts that fit on these devices, fastest first",
        where=Where.PLAN,
    ),
    Key(
        keys="m",
        action="next_table",
        help="toggle: memory peak, or inputs of the model",
        where=Where.PLAN,
        footer="table",
    ),
    Key(keys="up,k", label="up, k", action="move(-1, 0)", help="move up", where=Where.RANKS),
    Key(keys="down,j", label="down, j", action="move(1, 0)", help="move down", where=Where.RANKS),
    Key(keys="left,h", label="left, h", action="move(0, -1)", help="move left", where=Where.RANKS),
    Key(keys="right,l", label="right, l", action="move(0, 1)", help="move right", where=Where.RANKS),
    Key(
        keys="enter",
        action="choose",
        help="select this rank and step, and open its timeline",
        where=Where.RANKS,
        footer="timeline",
    ),
    Key(
        keys="space",
        action="number",
        help="open the number under the cursor",
        where=Where.RANKS,
        footer="number",
    ),
    Key(
        keys="m",
        action="screen.metric(1)",
        help="next metric",
        where=Where.RANKS,
        footer="metric",
    ),
    Key(keys="M", action="screen.metric(-1)", help="previous metric", where=Where.RANKS),
    Key(
        keys="f",
        action="fold",
        help="toggle: fold ranks to fit the screen, or one row per rank",
        where=Where.RANKS,
    ),
    Key(keys="n", action="gap(1)", help="next exposed gap", where=Where.TIMELINE, footer="next gap"),
    Key(keys="N", action="gap(-1)", help="previous exposed gap", where=Where.TIMELINE),
    Key(keys="x", action="longest", help="longest exposed gap", where=Where.TIMELINE, footer="longest"),
    Key(
        keys="plus,equals_sign",
        label="+",
        action="zoom(-1)",
        help="zoom in",
        where=Where.TIMELINE,
        footer="zoom",
    ),
    Key(
        keys="minus,underscore",
        label="-",
        action="zoom(1)",
        help="zoom out",
        where=Where.TIMELINE,
    ),
    Key(
        keys="left,h",
        label="left, h",
        action="cursor(-1)",
        help="move the cursor left; the view follows",
        where=Where.TIMELINE,
    ),
    Key(
        keys="right,l",
        label="right, l",
        action="cursor(1)",
        help="move the cursor right; the view follows",
        where=Where.TIMELINE,
    ),
    Key(
        keys="shift+left,H",
        label="shift+left, H",
        action="page(-1)",
        help="scroll left by half a screen",
        where=Where.TIMELINE,
    ),
    Key(
        keys="shift+right,L",
        label="shift+right, L",
        action="page(1)",
        help="scroll right by half a screen",
        where=Where.TIMELINE,
    ),
    Key(keys="up,k", label="up, k", action="lane(-1)", help="lane or rank above", where=Where.TIMELINE),
    Key(keys="down,j", label="down, j", action="lane(1)", help="lane or rank below", where=Where.TIMELINE),
    Key(
        keys="home", action="whole(0)", help="show the entire step, cursor at its start", where=Where.TIMELINE
    ),
    Key(keys="end", action="whole(1)", help="show the entire step, cursor at its end", where=Where.TIMELINE),
    Key(
        keys="enter",
        action="open",
        help="open the event under the cursor, or show the lanes of the rank",
        where=Where.TIMELINE,
        footer="open",
    ),
    Key(
        keys="w",
        action="app.open_run",
        help="open all screens for the data recorded so far",
        where=Where.LIVE,
        footer="whole run",
    ),
    Key(
        keys="s",
        action="sort_ranks",
        help="toggle: sort ranks by median step time, or by number",
        where=Where.LIVE,
        footer="by median",
    ),
    Key(
        keys="enter",
        action="explain_open",
        help="open a number of the ledger or tenants table",
        where=Where.LIVE,
    ),
    Key(
        keys="ctrl+c",
        action="app.end_job",
        help="interrupt the job",
        where=Where.LIVE,
        has_priority=True,
    ),
    Key(keys="j", action="scroll_lines(1)", help="move down", where=Where.POPUP),
    Key(keys="k", action="scroll_lines(-1)", help="move up", where=Where.POPUP),
    Key(
        keys="space,pagedown",
        label="space, pgdn",
        action="scroll_page(1)",
        help="page down",
        where=Where.POPUP,
    ),
    Key(keys="pageup", label="pgup", action="scroll_page(-1)", help="page up", where=Where.POPUP),
    Key(keys="escape", label="esc", action="close", help="close", where=Where.POPUP),
)


def bindings(where: Where) -> list[Binding]:
    """Return the Textual bindings of a scope.

    Popups cover the app, so their bindings include global bindings.
    """
    scope_bindings = [_make_binding(key, key.action) for key in KEYS if key.where is where]
    if where is Where.POPUP:
        scope_bindings += [
            _make_binding(key, key.action if key.action.startswith("app.") else f"app.{key.action}")
            for key in KEYS
            if key.where is Where.EVERYWHERE
        ]
    return scope_bindings


def _make_binding(key: Key, action: str) -> Binding:
    description = key.footer or key.help
    return Binding(
        key.keys,
        action,
        description,
        show=bool(key.footer),
        key_display=key.written,
        priority=key.has_priority,
    )
