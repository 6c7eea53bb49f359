"""What the terminal and the user want to see: colours on dark or light, none, or plain ASCII."""

import os

from zprof.model.errors import BadInput
from zprof.tui.theme.palette import Look

#: Names of our own for the themes that are asked for most.
_SHORT = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}


def wants_no_colour(environment: dict[str, str] | None = None) -> bool:
    """Whether NO_COLOR is set to anything (https://no-color.org)."""
    values = os.environ if environment is None else environment
    return bool(values.get("NO_COLOR"))


def look_of(app: object) -> Look:
    """The look of an app."""
    if getattr(app, "mono", False):
        return Look.MONO
    return Look.DARK if getattr(app, "is_dark", True) else Look.LIGHT


def theme_named(name: str) -> str:
    """Textual's name of a theme.

    Raises:
        BadInput: there is none of that name; its hint lists them.
    """
    from textual.theme import BUILTIN_THEMES

    full = _SHORT.get(name, name)
    if full not in BUILTIN_THEMES:
        names = ", ".join([*_SHORT, *sorted(BUILTIN_THEMES)])
        raise BadInput(f"--theme {name}: no such theme", hint=f"themes: {names}")
    return full
