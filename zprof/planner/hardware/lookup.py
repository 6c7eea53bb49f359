"""Finds a kind of machine by the name of a preset or the path of a TOML file."""

from pathlib import Path

from zprof.model.errors import BadInput
from zprof.model.planning.hardware import Hardware
from zprof.planner.hardware.presets import PRESETS
from zprof.planner.hardware.toml_file import read_hardware


def hardware_of(name_or_path: str) -> Hardware:
    """A preset, in any case, or what a file says whose name ends in ``.toml``.

    Raises:
        BadInput: there is no such preset (the line lists them), or the file cannot be used.
    """
    found = PRESETS.get(name_or_path.lower())
    if found is not None:
        return found
    if name_or_path.lower().endswith(".toml"):
        return read_hardware(Path(name_or_path))
    raise BadInput(
        f"no hardware named {name_or_path[:60]!r}",
        hint=f"one of {', '.join(PRESETS)}, or the path of a .toml file",
    )
