"""Find the rank of each file: from its content, else its name, else the order of the files."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten

_RANK = re.compile(r"(?:rank|worker)[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_SUFFIXES = re.compile(r"(?:\.(?:gz|zst|json|trace|pt|chrome|pickle|pkl))+$", re.IGNORECASE)
_NUMBER = re.compile(r"(?:^|[_.-])(\d{1,6})$")
#: tensorboard_trace_handler: HOST_PID.MILLISECONDS.pt.trace.json
_TIMED = re.compile(r"^(.*)\.\d{13,19}$")
_MAX_RANK = (1 << 20) - 1
_MAX_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedFile:
    """A file and its rank."""

    rank: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Files by rank, and notes on guesses."""

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...] = field(default=())


def rank_files(paths: Sequence[Path], said: Sequence[int | None] = ()) -> Ranking:
    """Assign a rank to each file, with a note for each uncertain assignment.

    Args:
        paths: The files, in the order that is used if nothing else gives their ranks.
        said: The rank that each file states, or None; it wins over the name.
    """
    stated = [*said, *[None] * (len(paths) - len(said))]
    sure = [
        RankedFile(rank=rank, path=path)
        for path, rank in zip(paths, stated, strict=True)
        if is_rank(rank) and rank is not None
    ]
    silent = [path for path, rank in zip(paths, stated, strict=True) if not is_rank(rank)]
    guessed, notes = _rank_by_name(silent, {file.rank for file in sure}) if silent else ([], ())
    files = sorted([*sure, *guessed], key=lambda file: file.rank)
    if sure and guessed:
        notes = (f"{len(guessed)} of {len(files)} files do not say their rank", *notes)
    return Ranking(files=tuple(files), notes=(*notes, *_find_contradictions(sure)))


def is_rank(rank: int | None) -> bool:
    """Return whether a number that a file states can be a rank."""
    return rank is not None and 0 <= rank <= _MAX_RANK


def refuse_duplicate_ranks(files: Sequence[RankedFile]) -> None:
    """Refuse two files of one rank.

    Raises:
        BadInput: names both files.
    """
    first: dict[int, Path] = {}
    for file in files:
        other = first.get(file.rank)
        if other is not None:
            times = ", recorded at two times" if _same_process(other, file.path) else ""
            message = f"{other} and {file.path}: both are of rank {file.rank}{times}"
            raise BadInput(message, hint="give one file a rank, all of one recording")
        first[file.rank] = file.path


def _rank_by_name(paths: Sequence[Path], taken: set[int]) -> tuple[list[RankedFile], tuple[str, ...]]:
    """Return ranks of files that do not state them, with a note if the method may be wrong."""
    named = _rank_by_number(paths, lambda path: _RANK.search(path.name))
    if named:
        return named, ()
    for what, search in _GUESSES.items():
        guessed = _rank_by_number(paths, search)
        if len({file.rank for file in guessed} - taken) == len(paths):
            return guessed, (f"{what} is taken as the rank: {_list_files(guessed)}",)
    free = (rank for rank in range(_MAX_RANK + 1) if rank not in taken)
    files = [RankedFile(rank=rank, path=path) for rank, path in zip(free, paths, strict=False)]
    note = f"the names do not say which rank is which, so the order does: {_list_files(files)}"
    return files, (note,) if len(files) + len(taken) > 1 else ()


_GUESSES: Mapping[str, Callable[[Path], re.Match[str] | None]] = {
    "the number of the folder": lambda path: _RANK.search(path.parent.name),
    "the last number of the name": lambda path: _NUMBER.search(_SUFFIXES.sub("", path.name)),
}


def _rank_by_number(
    paths: Sequence[Path], search: Callable[[Path], re.Match[str] | None]
) -> list[RankedFile]:
    """Return the files ordered by number; empty unless all have one."""
    found = [(search(path), path) for path in paths]
    files = [RankedFile(rank=int(match[1]), path=path) for match, path in found if match]
    return sorted(files, key=lambda file: file.rank) if len(files) == len(paths) else []


def _find_contradictions(sure: Sequence[RankedFile]) -> tuple[str, ...]:
    """Return a note on files whose names give another rank than their contents."""
    other = [
        file
        for file in sure
        if (match := _RANK.search(file.path.name)) is not None and int(match[1]) != file.rank
    ]
    if not other:
        return ()
    return (f"names of {len(other)} files say another rank than the files do: {_list_files(other)}",)


def _same_process(one: Path, other: Path) -> bool:
    """Return whether the names differ only in their timestamps."""
    matches = [_TIMED.match(_SUFFIXES.sub("", path.name)) for path in (one, other)]
    return all(matches) and len({match[1] for match in matches if match}) == 1


def _list_files(files: Sequence[RankedFile]) -> str:
    names = [f"{shorten(printable(file.path.name), 60)} is rank {file.rank}" for file in files[:_MAX_SHOWN]]
    return ", ".join(names) + (", ..." if len(files) > _MAX_SHOWN else "")
