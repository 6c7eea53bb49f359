"""Why ranks did not come to their end, in one line."""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from zprof.integrations.rank_of_test import RankPlan, failure_of, place_of
from zprof.model.printable import printable, shorten

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_ABORT = -signal.SIGABRT
_MOST_PLACES = 4
_LONGEST = 300


def failed(codes: Mapping[int, int], count: int, folder: Path) -> str:
    """The rank that failed first: the others fail because it is gone.  ``codes``: exit codes by rank."""
    raised = sorted(failure for rank in codes for failure in _said(folder, rank))
    spoke = {rank for _, rank, _ in raised}
    # Who loses the others' connections may abort: that is no cause while somebody raised.
    silent = [
        rank for rank, code in codes.items() if code and rank not in spoke and not (raised and code == _ABORT)
    ]
    if silent:
        return f"rank {silent[0]} of {count} {_end(codes[silent[0]])}"
    _, rank, line = raised[0]
    return f"rank {rank} of {count}: {_clean(line)}"


def hung(running: Sequence[int], count: int, folder: Path, plan: RankPlan) -> str:
    """Who did not end in time, and where they are: who waits, and for whom, is seen side by side."""
    who = ("rank " if len(running) == 1 else "ranks ") + ", ".join(str(rank) for rank in running)
    line = f"{who} of {count} did not end within {plan.timeout_s:g} s (timeout_s)"
    places = [(rank, _place(place_of(folder, rank), plan.file)) for rank in running]
    said = [f"rank {rank} is at {_clean(place)}" for rank, place in places if place][:_MOST_PLACES]
    return "; ".join([line, *said])


def _end(code: int) -> str:
    return f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"


def _said(folder: Path, rank: int) -> list[tuple[int, int, str]]:
    """When, who and what, of a rank that raised."""
    try:
        failure = json.loads(failure_of(folder, rank).read_text())
        return [(int(failure["time_ns"]), rank, str(failure["line"]))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _place(path: Path, file: str) -> str:
    """The innermost frame of the function's own file."""
    try:
        frames = list(_FRAME.finditer(path.read_text(errors="replace")))
    except OSError:
        return ""
    own = next((frame for frame in frames if frame["file"] == file), None)
    return f"{Path(file).name}:{own['line']} in {own['function']}" if own else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _clean(text: str) -> str:
    return shorten(printable(text), _LONGEST)
