"""Read one trace file, convert it, and write its tables: the part of an import that a worker does."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zprof.collectors.kineto.convert import (
    COPY_AGAIN,
    Tables,
    build_event_columns,
    convert_collectives,
    list_read_gaps,
)
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.collectors.kineto.steps import mark_steps
from zprof.collectors.kineto.trace import Trace
from zprof.integrations.imports.trace_worker import RankFacts, Refusal, TraceJob
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.run.writer import write_provisional
from zprof.version import __version__

_MAX_GAPS = 200
_MAX_TEXT = 120
_GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def write_trace_tables(job: TraceJob, on_bytes: Callable[[int], None]) -> RankFacts | Refusal:
    """Write the tables of one trace to the job's folder, which is replaced.

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
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:  # pyarrow compresses the large table without Python's lock
        events = pool.submit(write_provisional, folder, "events", build_event_columns(trace))
        collectives, gaps = convert_collectives(trace)
        steps = mark_steps(trace)
        small_tables: Tables = {"collectives": collectives, "mark": steps.columns}
        files = {name: write_provisional(folder, name, columns) for name, columns in small_tables.items()}
        files = {"events": events.result(), **files}
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
