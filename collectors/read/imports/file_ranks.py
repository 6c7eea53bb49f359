"""Find the rank of each file: from its content, else its name, else the order of the files."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten

_RANK = re.compile(r"(?<!local)(?<!local[_-])rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
#: Also found in host names, followed by letters there (worker-7f3).
_WORKER = re.compile(r"worker[_-]?(\d{1,6})(?![\da-z])", re.IGNORECASE)
_SUFFIXES = re.compile(r"(?:\.(?:gz|zst|json|trace|pt|chrome|pickle|pkl))+$", re.IGNORECASE)
_NUMBER = re.compile(r"(?:^|[_.-])(\d{1,6})$")
_END_NUMBER = re.compile(r"(?<!\d)(\d{1,6})$")
#: A time of day at the end of a name (HOST_Nov_25_02_21_28): its last number is not a rank.
_CLOCK = re.compile(r"\d\d[_.:-]\d\d[_.:-]\d\d$")
#: tensorboard_trace_handler: HOST_PID.MILLISECONDS.pt.trace.json
_TIMESTAMPED = re.compile(r"^(.*)\.\d{13,19}$")
_MAX_RANK = (1 << 20) - 1
_MAX_LISTED = 4


class RankedFile(Struct, frozen=True, kw_only=True):
    """A file and its rank."""

    rank: int
    path: Path


class Ranking(Struct, frozen=True, kw_only=True):
    """Files by rank, and notes on guesses."""

    files: tuple[RankedFile, ...]
    notes: tuple[str, ...] = field(default=())


def rank_files(paths: Sequence[Path], stated: Sequence[int | None] = ()) -> Ranking:
    """Assign a rank to each file, with a note for each uncertain assignment.

    Args:
        paths: The files; their order is used if nothing else gives the ranks.
        stated: The rank in the content of each file, or None; it takes precedence over the name.
    """
    content_ranks = [*stated, *[None] * (len(paths) - len(stated))]
    certain = [
        RankedFile(rank=rank, path=path)
        for path, rank in zip(paths, content_ranks, strict=True)
        if is_rank(rank) and rank is not None
    ]
    unranked = [path for path, rank in zip(paths, content_ranks, strict=True) if not is_rank(rank)]
    guessed, notes = _rank_by_name(unranked, {file.rank for file in certain}) if unranked else ([], ())
    files = sorted([*certain, *guessed], key=lambda file: file.rank)
    if certain and guessed:
        notes = (f"{len(guessed)} of {len(files)} files do not contain their rank", *notes)
    return Ranking(files=tuple(files), notes=(*notes, *_find_contradictions(certain)))


def is_rank(rank: int | None) -> bool:
    """Return True if a number from a file can be a rank."""
    return rank is not None and 0 <= rank <= _MAX_RANK


def refuse_duplicate_ranks(files: Sequence[RankedFile]) -> None:
    """Check that no two files are from the same rank.

    Raises:
        BadInput: two files are from the same rank; the message names both.
    """
    first: dict[int, Path] = {}
    for file in files:
        other = first.get(file.rank)
        if other is not None:
            # Whether the names differ only in their timestamps.
            matches = [_TIMESTAMPED.match(_SUFFIXES.sub("", path.name)) for path in (other, file.path)]
            times = (
                ", recorded at different times"
                if all(matches) and len({match[1] for match in matches if match}) == 1
                else ""
            )
            message = f"{other} and {file.path}: both are from rank {file.rank}{times}"
            raise BadInput(message, hint="pass one file per rank, all from the same recording")
        first[file.rank] = file.path


def _rank_by_name(paths: Sequence[Path], taken: set[int]) -> tuple[list[RankedFile], tuple[str, ...]]:
    """Guess the ranks of files that do not contain them, with a note if the guess is uncertain."""
    named = _rank_by_number(paths, lambda path: search_rank(path.name))
    if named:
        return named, ()
    for description, search in _GUESSES.items():
        guessed = _rank_by_number(paths, search)
        if len({file.rank for file in guessed} - taken) == len(paths):
            return guessed, (f"using {description} as the rank: {_list_files(guessed)}",)
    free = (rank for rank in range(_MAX_RANK + 1) if rank not in taken)
    files = [RankedFile(rank=rank, path=path) for rank, path in zip(free, paths, strict=False)]
    note = f"the file names do not contain ranks, so the file order is used: {_list_files(files)}"
    return files, (note,) if len(files) + len(taken) > 1 else ()


_GUESSES: Mapping[str, Callable[[Path], re.Match[str] | None]] = {
    "the number in the folder name": lambda path: search_rank(path.parent.name),
    "the last number in the file name": lambda path: _search_last_number(_SUFFIXES.sub("", path.name)),
}


def search_rank(name: str) -> re.Match[str] | None:
    """Return the match of the rank in a file or folder name; None without a rank.

    The last "rank" counts, since host and job names come first; a local rank does not.
    """
    matches = list(_RANK.finditer(name)) or list(_WORKER.finditer(name))
    return matches[-1] if matches else None


def read_dump_rank(name: str) -> int | None:
    """Return the rank in the name of a flight-recorder dump: PyTorch appends it to the user's name."""
    match = search_rank(name) or _END_NUMBER.search(_SUFFIXES.sub("", name))
    return int(match[1]) if match else None


def _search_last_number(stem: str) -> re.Match[str] | None:
    return None if _CLOCK.search(stem) else _NUMBER.search(stem)


def _rank_by_number(
    paths: Sequence[Path], search: Callable[[Path], re.Match[str] | None]
) -> list[RankedFile]:
    """Return the files ordered by number; empty unless all have one."""
    matches = [(search(path), path) for path in paths]
    files = [RankedFile(rank=int(match[1]), path=path) for match, path in matches if match]
    return sorted(files, key=lambda file: file.rank) if len(files) == len(paths) else []


def _find_contradictions(certain: Sequence[RankedFile]) -> tuple[str, ...]:
    """Return a note about files whose names contradict their contents."""
    contradicting = [
        file
        for file in certain
        if (match := search_rank(file.path.name)) is not None and int(match[1]) != file.rank
    ]
    if not contradicting:
        return ()
    return (
        f"the names of {len(contradicting)} files contain a different rank from their contents: "
        f"{_list_files(contradicting)}",
    )


def _list_files(files: Sequence[RankedFile]) -> str:
    names = [f"{shorten(printable(file.path.name), 60)} is rank {file.rank}" for file in files[:_MAX_LISTED]]
    return ", ".join(names) + (", ..." if len(files) > _MAX_LISTED else "")
