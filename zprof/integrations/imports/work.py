"""What is done for one trace file, in whatever process: read it, convert it, write its tables.

The rank is not known before the file has been read, so the tables go to a provisional folder.  Only a small
result goes back.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zprof.collectors.kineto.columns import Trace
from zprof.collectors.kineto.convert import COPY_AGAIN, convert, report_gaps
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.collectors.kineto.steps import step_marks
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.printable import printable, shorten
from zprof.run.manifest import TableFile
from zprof.run.tables import write_provisional
from zprof.version import __version__

_MOST_GAPS = 200
_MOST_TEXT = 120
_GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One file to import.  Paths are absolute: the process may be on another machine of a shared disk."""

    position: int
    path: str
    folder: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What a file's run must know of it, and which tables its provisional folder holds."""

    version: str
    rank: int | None
    world_size: int | None
    backend: str
    device: str
    host: str
    files: dict[str, TableFile]
    steps: tuple[int, ...]
    collectives: int
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a file could not be imported; ``lasting`` where another try would end the same."""

    reason: str
    hint: str = ""
    lasting: bool = True


def import_trace(job: TraceJob, on_bytes: Callable[[int], None] | None = None) -> RankFacts | Refusal:
    """Write the tables of one trace to the job's folder.

    Raises:
        OSError: the tables cannot be written.
    """
    try:
        trace = read_trace(Path(job.path), on_bytes)
        if not len(trace):
            return Refusal(reason="no event with a duration in it", hint=COPY_AGAIN)
        return _written(trace, Path(job.folder))
    except BadInput as error:
        return Refusal(reason=error.message.removeprefix(f"{job.path}: "), hint=error.hint)
    except MemoryError:
        reason = "reading it needs more memory than there is"
        return Refusal(reason=reason, hint="use fewer --workers", lasting=False)


def _written(trace: Trace, folder: Path) -> RankFacts:
    tables, gaps = convert(trace)
    steps = step_marks(trace)
    tables["mark"] = steps.columns
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {name: write_provisional(folder, name, columns) for name, columns in tables.items()}
    header = trace.header
    return RankFacts(
        version=__version__,
        rank=header.rank,
        world_size=header.world_size,
        backend=_short(header.backend),
        device=_device(trace),
        host=_short(header.host),
        files=files,
        steps=steps.numbers,
        collectives=files["collectives"].rows,
        gaps=(*report_gaps(trace.report), *steps.gaps, *gaps)[:_MOST_GAPS],
    )


def _device(trace: Trace) -> str:
    """What did the work: ``cuda``, ``hip``, ``mtia``, or ``cpu`` where nothing ran on a device."""
    categories = trace.category.texts
    if not _GPU_WORK & set(categories):
        return "mtia" if any(category.startswith("mtia_") for category in categories) else "cpu"
    of_amd = any("AMD" in name or "Instinct" in name for name in trace.header.devices)
    return "hip" if of_amd or any(text.startswith("hip") for text in trace.name.texts) else "cuda"


def _short(text: str) -> str:
    return shorten(printable(text), _MOST_TEXT)
