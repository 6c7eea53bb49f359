"""The single table of keys: bindings, footer and help texts all come from it."""

from dataclasses import dataclass
from enum import StrEnum

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
    POPUP = "what is opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or several that do the same, by their Textual names, with their action.

    ``spelled``: how users write the key, if that differs from Textual's name. ``is_first``: the key has
    priority over the bindings of focused widgets.
    """

    keys: str
    action: str
    says: str
    spelled: str = ""
    where: Where = Where.EVERYWHERE
    footer: str = ""
    is_first: bool = False

    @property
    def written(self) -> str:
        """The key as users write it."""
        return self.spelled or self.keys


KEYS: tuple[Key, ...] = (
    Key(keys="1", action="show('overview')", says="verdict, ledger and findings"),
    Key(keys="2", action="show('memory')", says="memory by tenant"),
    Key(keys="3", action="show('communication')", says="collectives, exposed and hidden"),
    Key(keys="4", action="show('timeline')", says="one step of one rank, lane by lane"),
    Key(keys="5", action="show('ranks')", says="ranks and steps as a heat map"),
    Key(keys="6", action="show('compare')", says="this run and its baseline, side by side"),
    Key(keys="7", action="show('plan')", says="what another stage, link or setting is predicted to do"),
    Key(keys="question_mark", spelled="?", action="explain", says="explain what is focused", footer="help"),
    Key(keys="f1", spelled="F1", action="help", says="all keys", footer="keys"),
    Key(keys="r", action="pick_rank", says="pick a rank"),
    Key(keys="t", action="pick_step", says="pick per step"),
    Key(keys="left_square_bracket", spelled="[", action="step(-1)", says="the step before"),
    Key(keys="right_square_bracket", spelled="]", action="step(1)", says="the next step"),
    Key(keys="b", action="baseline", says="name another run as the baseline"),
    Key(keys="g", action="gaps", says="what could not be measured", footer="gaps"),
    Key(keys="y", action="copy_markdown", says="copy what is focused as Markdown"),
    Key(keys="Y", action="copy_json", says="copy what is focused as JSON"),
    Key(keys="e", action="export", says="write the report to a file", footer="export"),
    Key(keys="o", action="perfetto", says="write this step as a trace for Perfetto"),
    Key(keys="ctrl+p", action="command_palette", says="all commands, and themes"),
    Key(keys="q", action="quit", says="leave", footer="quit"),
    Key(keys="ctrl+c", action="quit", says="leave, also where a line is typed", is_first=True),
    Key(keys="tab", action="app.focus_next", says="the next part of the screen"),
    Key(keys="shift+tab", action="app.focus_previous", says="the part before"),
    Key(keys="enter", action="open", says="open the number or row", where=Where.TABLE, footer="open"),
    Key(
        keys="slash",
        spelled="/",
        action="search",
        says="show rows with a text only",
        where=Where.TABLE,
        footer="search",
    ),
    Key(
        keys="escape",
        spelled="esc",
        action="all_rows",
        says="all rows again, where / shows some only",
        where=Where.TABLE,
    ),
    Key(keys="s", action="sort", says="sort by the next column", where=Where.TABLE, footer="sort"),
    Key(keys="S", action="reverse", says="sort the other way round", where=Where.TABLE),
    Key(keys="h", action="cursor_left", says="left", where=Where.TABLE),
    Key(keys="j", action="cursor_down", says="down", where=Where.TABLE),
    Key(keys="k", action="cursor_up", says="up", where=Where.TABLE),
    Key(keys="l", action="cursor_right", says="right", where=Where.TABLE),
    Key(keys="m", action="next_table", says="the next table", where=Where.MEMORY, footer="table"),
    Key(keys="up,k", spelled="up, k", action="across(-1)", says="the rank before", where=Where.MEMORY),
    Key(keys="down,j", spelled="down, j", action="across(1)", says="the next rank", where=Where.MEMORY),
    Key(
        keys="left,h",
        spelled="left, h",
        action="along(-1)",
        says="the tenant, or the time, before",
        where=Where.MEMORY,
    ),
    Key(
        keys="right,l",
        spelled="right, l",
        action="along(1)",
        says="the next tenant, or time",
        where=Where.MEMORY,
    ),
    Key(
        keys="enter",
        action="open_part",
        says="open the tenant, or the time",
        where=Where.MEMORY,
        footer="open",
    ),
    Key(
        keys="m",
        action="next_part",
        says="message sizes, units, the fitted link",
        where=Where.COMMUNICATION,
        footer="more",
    ),
    Key(
        keys="d",
        action="differences",
        says="only what differs, or all",
        where=Where.COMPARE,
        footer="differs",
    ),
    Key(
        keys="n",
        action="per_token",
        says="times of a step, or of all ranks over their tokens",
        where=Where.COMPARE,
        footer="per token",
    ),
    Key(keys="x", action="swap", says="swap A and B: all screens show the other run", where=Where.COMPARE),
    Key(keys="up,k", spelled="up, k", action="along(-1)", says="the knob above", where=Where.PLAN),
    Key(keys="down,j", spelled="down, j", action="along(1)", says="the knob below", where=Where.PLAN),
    Key(keys="left,h", spelled="left, h", action="turn(-1)", says="turn the knob down", where=Where.PLAN),
    Key(keys="right,l", spelled="right, l", action="turn(1)", says="turn the knob up", where=Where.PLAN),
    Key(keys="enter", action="open", says="what the knob does", where=Where.PLAN, footer="open"),
    Key(keys="x", action="reset", says="this knob as it was measured", where=Where.PLAN, footer="reset"),
    Key(keys="X", action="reset_all", says="all knobs as measured", where=Where.PLAN, footer="all"),
    Key(
        keys="m",
        action="next_table",
        says="the peak, or what the model took from the run",
        where=Where.PLAN,
        footer="table",
    ),
    Key(keys="up,k", spelled="up, k", action="move(-1, 0)", says="the ranks above", where=Where.RANKS),
    Key(keys="down,j", spelled="down, j", action="move(1, 0)", says="the ranks below", where=Where.RANKS),
    Key(keys="left,h", spelled="left, h", action="move(0, -1)", says="the steps before", where=Where.RANKS),
    Key(keys="right,l", spelled="right, l", action="move(0, 1)", says="the next steps", where=Where.RANKS),
    Key(
        keys="enter",
        action="choose",
        says="this rank and step on all screens, and its timeline",
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
        says="the next metric of the heat map",
        where=Where.RANKS,
        footer="metric",
    ),
    Key(keys="M", action="screen.metric(-1)", says="the metric before", where=Where.RANKS),
    Key(keys="f", action="fold", says="all ranks at once, or each in a row of its own", where=Where.RANKS),
    Key(keys="n", action="gap(1)", says="the next exposed gap", where=Where.TIMELINE, footer="next gap"),
    Key(keys="N", action="gap(-1)", says="the exposed gap before", where=Where.TIMELINE),
    Key(
        keys="x", action="longest", says="the longest exposed gap", where=Where.TIMELINE, footer="longest gap"
    ),
    Key(
        keys="plus,equals_sign",
        spelled="+",
        action="zoom(-1)",
        says="see less, larger, around the cursor",
        where=Where.TIMELINE,
        footer="zoom",
    ),
    Key(
        keys="minus,underscore",
        spelled="-",
        action="zoom(1)",
        says="see more around the cursor",
        where=Where.TIMELINE,
    ),
    Key(
        keys="left,h",
        spelled="left, h",
        action="cursor(-1)",
        says="earlier; the view goes with the cursor",
        where=Where.TIMELINE,
    ),
    Key(keys="right,l", spelled="right, l", action="cursor(1)", says="later", where=Where.TIMELINE),
    Key(
        keys="shift+left,H",
        spelled="shift+left, H",
        action="page(-1)",
        says="half a view earlier",
        where=Where.TIMELINE,
    ),
    Key(
        keys="shift+right,L",
        spelled="shift+right, L",
        action="page(1)",
        says="half a view later",
        where=Where.TIMELINE,
    ),
    Key(keys="up,k", spelled="up, k", action="lane(-1)", says="the lane above", where=Where.TIMELINE),
    Key(keys="down,j", spelled="down, j", action="lane(1)", says="the lane below", where=Where.TIMELINE),
    Key(keys="home", action="whole(0)", says="the whole step, the cursor at its begin", where=Where.TIMELINE),
    Key(keys="end", action="whole(1)", says="the whole step, the cursor at its end", where=Where.TIMELINE),
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
        says="all screens, on what is recorded so far",
        where=Where.LIVE,
        footer="whole run",
    ),
    Key(
        keys="s",
        action="sort_ranks",
        says="ranks by their median step, the longest first, or by number",
        where=Where.LIVE,
        footer="by median",
    ),
    Key(
        keys="enter",
        action="say_opens",
        says="open the number of a table; a rank's line opens nothing",
        where=Where.LIVE,
    ),
    Key(
        keys="ctrl+c",
        action="app.end_job",
        says="end the job, as without the view",
        where=Where.LIVE,
        is_first=True,
    ),
    Key(keys="j", action="scroll_lines(1)", says="down", where=Where.POPUP),
    Key(keys="k", action="scroll_lines(-1)", says="up", where=Where.POPUP),
    Key(
        keys="space,pagedown",
        spelled="space, pgdn",
        action="scroll_page(1)",
        says="a page down",
        where=Where.POPUP,
    ),
    Key(keys="pageup", spelled="pgup", action="scroll_page(-1)", says="a page up", where=Where.POPUP),
    Key(keys="escape", spelled="esc", action="close", says="back", where=Where.POPUP),
)


def bindings(where: Where) -> list[Binding]:
    """Return Textual bindings of all keys for a place.

    Popups cover the app, so their bindings include those that work everywhere.
    """
    bound = [_binding(key, key.action) for key in KEYS if key.where is where]
    if where is Where.POPUP:
        bound += [_binding(key, _of_app(key.action)) for key in KEYS if key.where is Where.EVERYWHERE]
    return bound


def _binding(key: Key, action: str) -> Binding:
    says = key.footer or key.says
    return Binding(
        key.keys, action, says, show=bool(key.footer), key_display=key.written, priority=key.is_first
    )


def _of_app(action: str) -> str:
    return action if action.startswith("app.") else f"app.{action}"
