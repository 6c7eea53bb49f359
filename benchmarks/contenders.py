"""Whole processes beside each other: run them in turn, take medians, and compare them with limits."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from benchmarks.processes import ROOT, ProcessUse, run_process

_TITLES = ("what", "median s", "MiB", "peer", "ratio", "limit", "holds")


class Cache(StrEnum):
    """The cache folder of a process: an empty one, or the one that the process before it has left."""

    FRESH = "fresh"
    KEPT = "kept"


class Contender(Struct, frozen=True, kw_only=True):
    """A process to measure; ``arguments`` are those of the Python interpreter."""

    name: str
    arguments: tuple[str, ...]
    cache: Cache = Cache.FRESH
    exit_code: int = 0


class Quantity(StrEnum):
    """What two processes are compared by."""

    SECONDS = "seconds"
    CPU = "cpu_s"
    MEMORY = "peak_mib"


class Comparison(Struct, frozen=True, kw_only=True):
    """A process beside its peer, or alone, and the limit of their ratio, or of the seconds.

    ``work_ratio``: how much more work the contender does; the ratio is divided by it.
    """

    contender: str
    peer: str | None = None
    max_ratio: float | None = None
    max_seconds: float | None = None
    quantity: Quantity = Quantity.SECONDS
    work_ratio: float = 1.0
    title: str = ""


class Group(Struct, frozen=True, kw_only=True):
    """Processes that run in turn, and how they are compared."""

    name: str
    contenders: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]


class Medians(Struct, frozen=True, kw_only=True):
    """Medians of a process over the timed rounds, and its peak memory with all its children."""

    seconds: float
    cpu_s: float
    peak_mib: float
    seconds_of_each: tuple[float, ...]
    cpu_s_of_each: tuple[float, ...]


class Row(Struct, frozen=True, kw_only=True):
    """A comparison with its figures; ``holds`` is None without a limit."""

    what: str
    seconds: float
    peak_mib: float
    peer: str | None
    ratio: float | None
    limit: float | None
    holds: bool | None
    quantity: Quantity
    is_limit_in_seconds: bool = False


class Turn(NamedTuple):
    """The turn of a contender in a round; round 0 warms up and is not timed."""

    round: int
    contender: Contender


def run_group(group: Group, rounds: int, folder: Path) -> dict[str, Medians]:
    """Run each contender once per round, in turn, and return the medians by name.

    In the round before the first, which warms the disk and the compiled modules, memory is sampled instead.
    """
    run = make_runner(folder)
    uses: dict[str, list[ProcessUse]] = {contender.name: [] for contender in group.contenders}
    for turn in iterate_turns(group.contenders, rounds):
        print(f"{group.name}: round {turn.round} of {rounds}: {turn.contender.name}", file=sys.stderr)
        uses[turn.contender.name].append(run(turn.contender, turn.round == 0))
    return {name: compute_medians(found[0], found[1:]) for name, found in uses.items()}


def iterate_turns(contenders: Sequence[Contender], rounds: int) -> Iterator[Turn]:
    """Yield each contender once per round, in order, the round that warms up first."""
    for number in range(rounds + 1):
        for contender in contenders:
            yield Turn(number, contender)


def compute_medians(warm_up: ProcessUse, timed: Sequence[ProcessUse]) -> Medians:
    """Return medians of the timed rounds, and the peak of all processes together.

    That of the first round was sampled; a median of exact peaks of one process that is higher replaces it.
    """
    exact_mib = median(use.peak_mib for use in timed)
    return Medians(
        seconds=median(use.seconds for use in timed),
        cpu_s=median(use.cpu_s for use in timed),
        peak_mib=max(exact_mib, warm_up.tree_peak_mib or 0.0),
        seconds_of_each=tuple(use.seconds for use in timed),
        cpu_s_of_each=tuple(use.cpu_s for use in timed),
    )


def make_runner(folder: Path) -> Callable[[Contender, bool], ProcessUse]:
    """Return a function that runs a contender in a folder that is no checkout, as a user does."""
    caches: list[str] = []

    def run(contender: Contender, is_tree_sampled: bool) -> ProcessUse:
        if contender.cache is Cache.FRESH:
            caches.append(tempfile.mkdtemp(prefix="cache-", dir=folder))
        return run_process(
            [sys.executable, *contender.arguments],
            environment=make_environment(os.environ, caches[-1]),
            folder=folder,
            exit_code=contender.exit_code,
            is_tree_sampled=is_tree_sampled,
        )

    return run


def make_environment(inherited: Mapping[str, str], cache: str) -> dict[str, str]:
    """Return the environment of a user with this cache folder: modules stay compiled, reports are kept."""
    unset = ("ZPROF_NO_CACHE", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in inherited.items() if name not in unset}
    return kept | {"XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}


def compare(comparison: Comparison, medians: Mapping[str, Medians]) -> Row | None:
    """Return a comparison's figures; None if a process was not measured."""
    own = medians.get(comparison.contender)
    peer = medians.get(comparison.peer) if comparison.peer is not None else None
    if own is None or (peer is None) != (comparison.peer is None):
        return None
    ratio = None if peer is None else _get(own, comparison.quantity) / _get(peer, comparison.quantity)
    if ratio is not None:
        ratio /= comparison.work_ratio
    is_absolute = comparison.max_seconds is not None
    limit = comparison.max_seconds if is_absolute else comparison.max_ratio
    value = own.seconds if is_absolute else ratio
    return Row(
        what=comparison.title or comparison.contender,
        seconds=own.seconds,
        peak_mib=own.peak_mib,
        peer=comparison.peer,
        ratio=ratio,
        limit=limit,
        holds=None if limit is None or value is None else value <= limit,
        quantity=comparison.quantity,
        is_limit_in_seconds=is_absolute,
    )


def _get(medians: Medians, quantity: Quantity) -> float:
    return float(getattr(medians, quantity))


def format_rows(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines: list[tuple[str, ...]] = [_TITLES, ("---",) * len(_TITLES)]
    lines += [_format_row(row) for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _format_row(row: Row) -> tuple[str, ...]:
    quantity = {Quantity.MEMORY: ", memory", Quantity.CPU: ", processor time"}.get(row.quantity, "")
    return (
        row.what,
        f"{row.seconds:.2f}",
        f"{row.peak_mib:.0f}",
        (row.peer or "") + (quantity if row.peer else ""),
        "" if row.ratio is None else format_ratio(row.ratio),
        _format_limit(row),
        {True: "yes", False: "NO", None: ""}[row.holds],
    )


def _format_limit(row: Row) -> str:
    if row.limit is None:
        return ""
    if row.is_limit_in_seconds:
        return f"≤ {row.limit:g} s"
    return f"≤ {row.limit:g}x" if row.limit >= 1 else f"≤ 1/{1 / row.limit:g}"


def format_ratio(ratio: float) -> str:
    """Return a ratio as a multiple, or as a fraction if it is below a half: 2.5x, 0.80x, 1/8.3."""
    return f"{ratio:.2f}x" if ratio >= 0.5 else f"1/{1 / ratio:.1f}"
