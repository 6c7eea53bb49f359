"""Which rank a snapshot is of: its file's name says so, or the order in which the files are given."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.model.printable import printable, shorten

_RANK = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:^|[_.-])(\d{1,6})\.(?:pickle|pkl)(?:\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedFile:
    """A snapshot, and the rank that it is of."""

    rank: int
    path: Path


def ranked(paths: Sequence[Path]) -> tuple[tuple[RankedFile, ...], tuple[str, ...]]:
    """The files by rank, and a note where their names do not say it beyond doubt.

    Raises:
        BadInput: two files are of one rank.
    """
    named = _numbered(_RANK, paths)
    if named:
        _refuse_twice(named)
        return tuple(named), ()
    numbered = _numbered(_NUMBER, paths)
    if len({file.rank for file in numbered}) == len(paths):
        return tuple(numbered), (f"the last number of the name is taken as the rank: {_shown(numbered)}",)
    files = [RankedFile(rank=rank, path=path) for rank, path in enumerate(paths)]
    note = f"the names do not say which rank is which, so the order does: {_shown(files)}"
    return tuple(files), (note,) if len(files) > 1 else ()


def _numbered(pattern: re.Pattern[str], paths: Sequence[Path]) -> list[RankedFile]:
    """The files in the order of their numbers; none where not all have one."""
    found = [(pattern.search(path.name), path) for path in paths]
    files = [RankedFile(rank=int(match[1]), path=path) for match, path in found if match]
    return sorted(files, key=lambda file: file.rank) if len(files) == len(paths) else []


def _refuse_twice(files: Sequence[RankedFile]) -> None:
    for one, next_one in pairwise(files):
        if one.rank == next_one.rank:
            raise BadInput(
                f"{one.path} and {next_one.path}: both are of rank {one.rank}",
                hint="give one snapshot a rank",
            )


def _shown(files: Sequence[RankedFile]) -> str:
    names = [f"{shorten(printable(file.path.name), 60)} is rank {file.rank}" for file in files[:4]]
    return ", ".join(names) + (", ..." if len(files) > 4 else "")
