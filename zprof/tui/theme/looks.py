"""What the terminal and the user want to see: colours on dark or light, none, or plain ASCII."""

import os

from zprof.tui.theme.palette import Look


def wants_no_colour(environment: dict[str, str] | None = None) -> bool:
    """Whether NO_COLOR is set to anything (https://no-color.org)."""
    values = os.environ if environment is None else environment
    return bool(values.get("NO_COLOR"))


def look_of(app: object) -> Look:
    """The look of an app."""
    if getattr(app, "mono", False):
        return Look.MONO
    return Look.DARK if getattr(app, "is_dark", True) else Look.LIGHT
