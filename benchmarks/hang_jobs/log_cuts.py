"""Cut and disfigure a log as people paste it, and keep account of which lines are still whole."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.hang_jobs.job import RANKS_PER_NODE
from benchmarks.hang_jobs.log_truth import Fact

CUTS = (
    "complete",
    "torchrun_folder",
    "one_rank",
    "two_lines",
    "first_lines",
    "wrapped",
    "interleaved",
    "prefixed",
    "glued",
)
WIDTHS = (80, 100, 120, 160)
OTHER_OUTPUT = (
    "/usr/lib/python3/dist-packages/torch/utils/checkpoint.py:429: UserWarning: use_reentrant is not set",
    "wandb: Network error (ConnectTimeout), entering retry loop.",
    "slurmstepd: error: *** STEP 4411.0 ON node000 CANCELLED AT 2026-08-06T10:12:44 DUE TO TIME LIMIT ***",
    "INFO:root:saving checkpoint to /job/checkpoints/rank 3 of 8",
    "    ^^^^^^^^^^^^^^^^^^^^^^^^^^",
)


class Line(Struct, frozen=True, kw_only=True):
    """A line of a rank (-1: of the launcher), written at a time of its clock, and what it says.

    ``group``: the name of the group that it is about, which the text may not have.
    """

    rank: int
    at_ns: int
    text: str
    fact: Fact | None = None
    group: str = ""


def write_cut(rng: random.Random, lines: Sequence[Line], folder: Path, cut: str) -> tuple[str, list[Line]]:
    """Write the lines, in the order of their times, as ``cut`` shows them.

    Return what to read, in the folder, and the lines that are in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if cut == "torchrun_folder":
        return "logs", _write_folder(lines, folder / "logs")
    kept = {"one_rank": _keep_one_rank, "two_lines": _keep_two_lines, "first_lines": _keep_first}.get(
        cut, _keep_all
    )(rng, lines)
    text = {"wrapped": _wrap, "interleaved": _interleave, "prefixed": _prefix, "glued": _glue}.get(
        cut, _join
    )(rng, kept)
    (folder / "job.log").write_text(text)
    return "job.log", kept


def _write_folder(lines: Sequence[Line], folder: Path) -> list[Line]:
    """Write ``attempt_0/RANK/stderr.log`` of each rank, with a folder of each node if there are several.

    The launcher writes to the console: nothing of it is there.
    """
    ranks = sorted({line.rank for line in lines if line.rank >= 0})
    has_nodes = any(rank >= RANKS_PER_NODE for rank in ranks)
    for rank in ranks:
        node = folder / f"node{rank // RANKS_PER_NODE:03}" if has_nodes else folder
        place = node / "attempt_0" / str(rank % RANKS_PER_NODE)
        place.mkdir(parents=True, exist_ok=True)
        mine = [line.text for line in lines if line.rank == rank]
        (place / "stderr.log").write_text("\n".join([*mine, ""]))
        (place / "stdout.log").write_text("")
    return [line for line in lines if line.rank >= 0]


def _keep_all(rng: random.Random, lines: Sequence[Line]) -> list[Line]:
    return list(lines)


def _keep_one_rank(rng: random.Random, lines: Sequence[Line]) -> list[Line]:
    speakers = sorted({line.rank for line in lines if line.fact is not None and line.rank >= 0}) or [0]
    rank = rng.choice(speakers)
    return [line for line in lines if line.rank == rank]


def _keep_two_lines(rng: random.Random, lines: Sequence[Line]) -> list[Line]:
    """Keep of each rank two that follow one another of those that say something about a group."""
    kept: set[int] = set()
    for rank in sorted({line.rank for line in lines if line.rank >= 0}):
        mine = [place for place, line in enumerate(lines) if line.rank == rank and line.fact is not None]
        group = rng.choice([lines[place].group for place in mine] or [""])
        places = [place for place in mine if lines[place].group == group]
        first = rng.randrange(max(len(places) - 1, 1))
        kept |= set(places[first : first + 2])
    return [line for place, line in enumerate(lines) if place in kept]


def _keep_first(rng: random.Random, lines: Sequence[Line]) -> list[Line]:
    first = next((place for place, line in enumerate(lines) if line.fact is not None), 0)
    return list(lines[: first + rng.randint(2, 24)])


def _join(rng: random.Random, lines: Sequence[Line]) -> str:
    return "\n".join([*(line.text for line in lines), ""])


def _wrap(rng: random.Random, lines: Sequence[Line]) -> str:
    """Break lines at the width of a terminal, in the middle of words or not, and fill them with blanks."""
    width, indent = rng.choice(WIDTHS), rng.choice(("", "", "  "))
    at_words = rng.random() < 0.3
    rows = []
    for line in lines:
        rest = line.text
        while len(rest) > width:
            end = width
            if at_words and " " in rest[1:width]:
                end = rest.rindex(" ", 1, width) + 1
            rows.append(rest[:end])
            rest = rest[end:]
        rows.append(rest)
    return "\n".join([*(f"{indent}{row:<{width}}" for row in rows), ""])


def _interleave(rng: random.Random, lines: Sequence[Line]) -> str:
    """Put other output between lines, and progress bars without an end of line before them."""
    parts = []
    for line in lines:
        if rng.random() < 0.3:
            parts.append(rng.choice(OTHER_OUTPUT) + "\n")
        if rng.random() < 0.2:
            percent = rng.randrange(100)
            parts.append(f"\r{percent:3}%|{'#' * (percent // 10):10}| {percent}/100 [00:07<00:05,  1.4it/s]")
        parts.append(line.text + "\n")
    return "".join(parts)


def _prefix(rng: random.Random, lines: Sequence[Line]) -> str:
    style = rng.choice(sorted(PREFIXES))
    return "\n".join([*(PREFIXES[style](line) for line in lines), ""])


def _write_slurm(line: Line) -> str:
    return f"{max(line.rank, 0):>3}: {line.text}"


def _write_kubernetes(line: Line) -> str:
    seconds = line.at_ns // 1_000_000_000
    clock = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"2026-08-06T{clock}.{line.at_ns % 10**9:09}Z stderr F {line.text}"


def _write_ray(line: Line) -> str:
    who = f"RayTrainWorker pid={40_000 + line.rank}, ip=10.0.0.{1 + max(line.rank, 0) // RANKS_PER_NODE}"
    return f"\x1b[36m({who})\x1b[0m {line.text}"


def _write_compose(line: Line) -> str:
    return f"trainer-{max(line.rank, 0) // RANKS_PER_NODE} | {line.text}"


def _write_tee(line: Line) -> str:
    return line.text if line.rank < 0 else f"[default{line.rank % RANKS_PER_NODE}]:{line.text}"


def _write_colour(line: Line) -> str:
    return f"\x1b[31m{line.text}\x1b[0m"


PREFIXES: dict[str, Callable[[Line], str]] = {
    "slurm": _write_slurm,
    "kubernetes": _write_kubernetes,
    "ray": _write_ray,
    "compose": _write_compose,
    "tee": _write_tee,
    "colour": _write_colour,
}


def _glue(rng: random.Random, lines: Sequence[Line]) -> str:
    """Leave out ends of lines where another rank's line follows."""
    parts = []
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        is_other = (
            following is not None and following.rank != line.rank and min(line.rank, following.rank) >= 0
        )
        parts.append(line.text + ("" if is_other and rng.random() < 0.3 else "\n"))
    return "".join(parts)
