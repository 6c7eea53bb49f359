"""``e`` and ``o``: the report in a file, and a slice of the run for Perfetto; never over a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from zprof.model.errors import BadInput
from zprof.model.printable import printable
from zprof.reports.formats import FORMATS, by_path
from zprof.tui.session import Loaded, Selected

#: A name of a file is at most 255 bytes long, on all usual file systems.
_LONGEST_NAME = 180
#: Slices of more ranks are too large to look at: then only the selected one is written.
_MOST_RANKS = 16


def report_name(name: str, folder: Path) -> str:
    """A name for the report of a run that is free in this folder."""
    return free_name(f"{_stem(name)}-report", ".txt", folder)


def free_name(stem: str, suffix: str, folder: Path) -> str:
    """``stem.txt``, or the first of ``stem-2.txt``, ``stem-3.txt`` ... that is not there yet."""
    number, name = 1, f"{stem}{suffix}"
    while (folder / name).exists() or (folder / name).is_symlink():
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name


def _stem(name: str) -> str:
    shown = printable(name).replace("/", "_")
    return shown.encode()[:_LONGEST_NAME].decode(errors="ignore") or "run"


def export_report(loaded: Loaded | None, path: Path) -> str:
    """Write the report, in the format that the file's suffix names.

    Raises:
        BadInput: nothing is loaded, no such format, or the file cannot be made or is there already.
    """
    if loaded is None:
        raise BadInput("nothing is measured yet", hint="wait until the run is measured")
    suffixes = [suffix for form in FORMATS for suffix in form.suffixes]
    if path.suffix.lower() not in suffixes:
        raise BadInput(f"{path}: its suffix names no format", hint=f"end it in {', '.join(suffixes)}")
    document = by_path(path).render(loaded.report)
    _write(path, lambda file: file.write(document.encode("utf-8")))
    return f"wrote {path.absolute()}"


def export_perfetto(loaded: Loaded | None, selected: Selected, folder: Path) -> str:
    """Write the selected step for Perfetto: of all loaded ranks, or of the selected one of very many.

    Raises:
        BadInput: nothing is loaded, or the file cannot be made.
    """
    from zprof.integrations.perfetto.choice import Choice
    from zprof.integrations.perfetto.export import export

    if loaded is None or selected.step is None:
        raise BadInput("no timed step is selected", hint="wait until the run is measured, or pick one with t")
    count = len(loaded.report.run.ranks_loaded)
    ranks = None if count <= _MOST_RANKS or selected.rank is None else frozenset({selected.rank})
    stem = f"{_stem(loaded.report.run.name)}-step{selected.step}"
    stem += f"-rank{selected.rank}" if ranks else "-all-ranks"
    path = folder / free_name(stem, ".json", folder)
    choice = Choice(ranks=ranks, steps=frozenset({selected.step}), python=False)
    _write(path, lambda file: export(loaded.run, choice, file, loaded.analysis))
    whose = (
        f"rank {selected.rank} alone, {count} are too many for one trace"
        if ranks
        else _ranks(loaded.report.run.ranks_loaded)
    )
    return f"wrote {path.absolute()} (step {selected.step} of {whose}): open it at https://ui.perfetto.dev"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks))
    return f"rank {named}" if len(ranks) == 1 else f"all loaded ranks: {named}"


def _write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """A new file; nothing is left of it where it could not be filled."""
    try:
        with path.open("xb") as file:
            try:
                fill(file)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise BadInput(f"{path}: is there already", hint="name another file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: cannot be written ({reason})", hint="name another file") from None
