"""Convert one trace file in a worker process: read it, convert it, write its tables.

The rank is unknown until the file has been read, so the tables are written to a provisional folder. Only a
small result is returned.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from zprof.collectors.kineto.convert import COPY_AGAIN, convert_trace, list_read_gaps
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.collectors.kineto.steps import mark_steps
from zprof.collectors.kineto.trace import Trace
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.model.gaps import Gap
from zprof.run.manifest import TableFile
from zprof.run.writer import write_provisional
from zprof.version import __version__

_MAX_GAPS = 200
_MAX_TEXT = 120
_GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


class TraceJob(Struct, frozen=True, kw_only=True):
    """One file to import; paths are absolute, because the worker may run on another machine."""

    position: int
    path: str
    folder: str
    bytes: int


class RankFacts(Struct, frozen=True, kw_only=True):
    """Facts of one file for the run's manifest, and the tables in its provisional folder."""

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


class Refusal(Struct, frozen=True, kw_only=True):
    """Reason why a file could not be imported; ``is_permanent``: another try would fail in the same way."""

    reason: str
    hint: str = ""
    is_permanent: bool = True


def import_trace(job: TraceJob, on_bytes: Callable[[int], None] | None = None) -> RankFacts | Refusal:
    """Write the tables of one trace to the job's folder.

    Raises:
        OSError: the tables cannot be written.
    """
    try:
        trace = read_trace(Path(job.path), on_bytes)
        if not len(trace):
            return Refusal(reason="contains no event with a duration", hint=COPY_AGAIN)
        return _write_tables(trace, Path(job.folder))
    except BadInput as error:
        return Refusal(reason=error.message.removeprefix(f"{job.path}: "), hint=error.hint)
    except MemoryError:
        reason = "not enough memory to read it"
        return Refusal(reason=reason, hint="use fewer --workers", is_permanent=False)


def _write_tables(trace: Trace, folder: Path) -> RankFacts:
    tables, gaps = convert_trace(trace)
    steps = mark_steps(trace)
    tables["mark"] = steps.columns
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {name: write_provisional(folder, name, columns) for name, columns in tables.items()}
    header = trace.header
    return RankFacts(
        version=__version__,
        rank=header.rank,
        world_size=header.world_size,
        backend=_shorten(header.backend),
        device=_detect_device_kind(trace),
        host=_shorten(header.host),
        files=files,
        steps=steps.numbers,
        collectives=files["collectives"].rows,
        gaps=(*list_read_gaps(trace.report), *steps.gaps, *gaps)[:_MAX_GAPS],
    )


def _detect_device_kind(trace: Trace) -> str:
    """Return the device type: ``cuda``, ``hip``, ``mtia``, or ``cpu`` if nothing ran on a device."""
    categories = trace.category.texts
    if not _GPU_CATEGORIES & set(categories):
        return "mtia" if any(category.startswith("mtia_") for category in categories) else "cpu"
    is_amd = any("AMD" in name or "Instinct" in name for name in trace.header.devices)
    return "hip" if is_amd or any(text.startswith("hip") for text in trace.name.texts) else "cuda"


def _shorten(text: str) -> str:
    return shorten(printable(text), _MAX_TEXT)
