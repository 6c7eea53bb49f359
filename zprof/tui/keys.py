"""Define all keys in one table, from which bindings, footer and help texts are made."""

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
    takes precedence over those of focused widgets.
    """

    keys: str
    action: str
    says: str
    label: str = ""
    where: Where = Where.EVERYWHERE
    footer: str = ""
    has_priority: bool = False

    @property
    def written(self) -> str:
        """Return the key as shown to users."""
        return self.label or self.keys


KEYS: tuple[Key, ...] = (
    Key(keys="1", action="show('overview')", says="overview: verdict, ledger, findings"),
    Key(keys="2", action="show('memory')", says="memory by tenant"),
    Key(keys="3", action="show('communication')", says="collectives: exposed and hidden time"),
    Key(keys="4", action="show('timeline')", says="timeline of one step on one rank"),
    Key(keys="5", action="show('ranks')", says="heat map of ranks and steps"),
    Key(keys="6", action="show('compare')", says="compare this run with its baseline"),
    Key(keys="7", action="show('plan')", says="predict the effect of another stage, link or setting"),
    Key(keys="question_mark", label="?", action="explain", says="explain the focused item", footer="help"),
    Key(keys="f1", label="F1", action="help", says="list all keys", footer="keys"),
    Key(keys="r", action="pick_rank", says="pick a rank"),
    Key(keys="t", action="pick_step", says="pick a step"),
    Key(keys="left_square_bracket", label="[", action="step(-1)", says="previous step"),
    Key(keys="right_square_bracket", label="]", action="step(1)", says="next step"),
    Key(keys="b", action="baseline", says="choose a baseline run"),
    Key(keys="g", action="gaps", says="list what could not be measured", footer="gaps"),
    Key(keys="y", action="copy_markdown", says="copy the focused row as Markdown"),
    Key(keys="Y", action="copy_json", says="copy the focused row as JSON"),
    Key(keys="e", action="export", says="write the report to a file", footer="export"),
    Key(keys="o", action="perfetto", says="write this step as a Perfetto trace"),
    Key(keys="ctrl+p", action="command_palette", says="command palette: all commands and themes"),
    Key(keys="q", action="quit", says="quit", footer="quit"),
    Key(keys="ctrl+c", action="quit", says="quit, even while typing", has_priority=True),
    Key(keys="tab", action="app.focus_next", says="next pane"),
    Key(keys="shift+tab", action="app.focus_previous", says="previous pane"),
    Key(
        keys="enter", action="open", says="open the selected number or row", where=Where.TABLE, footer="open"
    ),
    Key(
        keys="slash",
        label="/",
        action="search",
        says="filter rows by text",
        where=Where.TABLE,
        footer="search",
    ),
    Key(
        keys="escape",
        label="esc",
        action="all_rows",
        says="clear the filter",
        where=Where.TABLE,
    ),
    Key(keys="s", action="sort", says="sort by the next column", where=Where.TABLE, footer="sort"),
    Key(keys="S", action="reverse", says="reverse the sort order", where=Where.TABLE),
    Key(keys="h", action="cursor_left", says="move left", where=Where.TABLE),
    Key(keys="j", action="cursor_down", says="move down", where=Where.TABLE),
    Key(keys="k", action="cursor_up", says="move up", where=Where.TABLE),
    Key(keys="l", action="cursor_right", says="move right", where=Where.TABLE),
    Key(keys="m", action="next_table", says="next table", where=Where.MEMORY, footer="table"),
    Key(keys="up,k", label="up, k", action="across(-1)", says="previous rank", where=Where.MEMORY),
    Key(keys="down,j", label="down, j", action="across(1)", says="next rank", where=Where.MEMORY),
    Key(
        keys="left,h",
        label="left, h",
        action="along(-1)",
        says="previous tenant or point in time",
        where=Where.MEMORY,
    ),
    Key(
        keys="right,l",
        label="right, l",
        action="along(1)",
        says="next tenant or point in time",
        where=Where.MEMORY,
    ),
    Key(
        keys="enter",
        action="open_part",
        says="open the selected tenant or point in time",
        where=Where.MEMORY,
        footer="open",
    ),
    Key(
        keys="m",
        action="next_part",
        says="show message sizes, units and the link fit",
        where=Where.COMMUNICATION,
        footer="more",
    ),
    Key(
        keys="d",
        action="differences",
        says="toggle: differences only, or everything",
        where=Where.COMPARE,
        footer="differs",
    ),
    Key(
        keys="n",
        action="per_token",
        says="toggle: time per step, or rank time per token",
        where=Where.COMPARE,
        footer="per token",
    ),
    Key(keys="x", action="swap", says="swap A and B on all screens", where=Where.COMPARE),
    Key(keys="up,k", label="up, k", action="along(-1)", says="previous knob", where=Where.PLAN),
    Key(keys="down,j", label="down, j", action="along(1)", says="next knob", where=Where.PLAN),
    Key(keys="left,h", label="left, h", action="turn(-1)", says="decrease the value", where=Where.PLAN),
    Key(keys="right,l", label="right, l", action="turn(1)", says="increase the value", where=Where.PLAN),
    Key(keys="enter", action="open", says="explain the knob", where=Where.PLAN, footer="open"),
    Key(
        keys="x",
        action="reset",
        says="reset this knob to the measured value",
        where=Where.PLAN,
        footer="reset",
    ),
    Key(keys="X", action="reset_all", says="reset all knobs", where=Where.PLAN, footer="all"),
    Key(
        keys="m",
        action="next_table",
        says="toggle: memory peak, or inputs of the model",
        where=Where.PLAN,
        footer="table",
    ),
    Key(keys="up,k", label="up, k", action="move(-1, 0)", says="move up", where=Where.RANKS),
    Key(keys="down,j", label="down, j", action="move(1, 0)", says="move down", where=Where.RANKS),
    Key(keys="left,h", label="left, h", action="move(0, -1)", says="move left", where=Where.RANKS),
    Key(keys="right,l", label="right, l", action="move(0, 1)", says="move right", where=Where.RANKS),
    Key(
        keys="enter",
        action="choose",
        says="select this rank and step, and open its timeline",
        where=Where.RANKS,
        footer="timeline",
    ),
    Key(
        keys="space",
        action="number",
        says="open the number under the cursor",
        where=Where.RANKS,
        footer="number",
    ),
    Key(
        keys="m",
        action="screen.metric(1)",
        says="next metric",
        where=Where.RANKS,
        footer="metric",
    ),
    Key(keys="M", action="screen.metric(-1)", says="previous metric", where=Where.RANKS),
    Key(
        keys="f",
        action="fold",
        says="toggle: fold ranks to fit the screen, or one row per rank",
        where=Where.RANKS,
    ),
    Key(keys="n", action="gap(1)", says="next exposed gap", where=Where.TIMELINE, footer="next gap"),
    Key(keys="N", action="gap(-1)", says="previous exposed gap", where=Where.TIMELINE),
    Key(keys="x", action="longest", says="longest exposed gap", where=Where.TIMELINE, footer="longest gap"),
    Key(
        keys="plus,equals_sign",
        label="+",
        action="zoom(-1)",
        says="zoom in",
        where=Where.TIMELINE,
        footer="zoom",
    ),
    Key(
        keys="minus,underscore",
        label="-",
        action="zoom(1)",
        says="zoom out",
        where=Where.TIMELINE,
    ),
    Key(
        keys="left,h",
        label="left, h",
        action="cursor(-1)",
        says="move the cursor left; the view follows",
        where=Where.TIMELINE,
    ),
    Key(
        keys="right,l",
        label="right, l",
        action="cursor(1)",
        says="move the cursor right; the view follows",
        where=Where.TIMELINE,
    ),
    Key(
        keys="shift+left,H",
        label="shift+left, H",
        action="page(-1)",
        says="scroll left by half a screen",
        where=Where.TIMELINE,
    ),
    Key(
        keys="shift+right,L",
        label="shift+right, L",
        action="page(1)",
        says="scroll right by half a screen",
        where=Where.TIMELINE,
    ),
    Key(keys="up,k", label="up, k", action="lane(-1)", says="lane above", where=Where.TIMELINE),
    Key(keys="down,j", label="down, j", action="lane(1)", says="lane below", where=Where.TIMELINE),
    Key(
        keys="home", action="whole(0)", says="show the entire step, cursor at its start", where=Where.TIMELINE
    ),
    Key(keys="end", action="whole(1)", says="show the entire step, cursor at its end", where=Where.TIMELINE),
    Key(
        keys="enter",
        action="open",
        says="open the event under the cursor",
        where=Where.TIMELINE,
        footer="open",
    ),
    Key(
        keys="w",
        action="app.open_run",
        says="open all screens for the data recorded so far",
        where=Where.LIVE,
        footer="whole run",
    ),
    Key(
        keys="s",
        action="sort_ranks",
        says="toggle: sort ranks by median step time, or by number",
        where=Where.LIVE,
        footer="by median",
    ),
    Key(
        keys="enter",
        action="explain_open",
        says="open a number of the ledger or tenants table",
        where=Where.LIVE,
    ),
    Key(
        keys="ctrl+c",
        action="app.end_job",
        says="interrupt the job",
        where=Where.LIVE,
        has_priority=True,
    ),
    Key(keys="j", action="scroll_lines(1)", says="move down", where=Where.POPUP),
    Key(keys="k", action="scroll_lines(-1)", says="move up", where=Where.POPUP),
    Key(
        keys="space,pagedown",
        label="space, pgdn",
        action="scroll_page(1)",
        says="page down",
        where=Where.POPUP,
    ),
    Key(keys="pageup", label="pgup", action="scroll_page(-1)", says="page up", where=Where.POPUP),
    Key(keys="escape", label="esc", action="close", says="close", where=Where.POPUP),
)


def bindings(where: Where) -> list[Binding]:
    """Return the Textual bindings of a scope.

    Popups cover the app, so their bindings include the global ones.
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
    description = key.footer or key.says
    return Binding(
        key.keys,
        action,
        description,
        show=bool(key.footer),
        key_display=key.written,
        priority=key.has_priority,
    )
