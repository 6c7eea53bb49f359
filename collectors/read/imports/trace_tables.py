"""Read one trace file, convert it, and write its tables: the part of an import that a worker does."""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.collectors.read.imports.trace_worker import RankFacts, Refusal, TraceJob
from zprof.collectors.read.kineto.convert import (
    COPY_AGAIN,
    Tables,
    build_event_columns,
    convert_collectives,
    list_read_gaps,
)
from zprof.collectors.read.kineto.device.ascend import read_ascend_lanes
from zprof.collectors.read.kineto.device.metadata import detect_device, find_unknown_lanes
from zprof.collectors.read.kineto.reading.reader import read_trace
from zprof.collectors.read.kineto.steps import mark_steps
from zprof.collectors.read.kineto.trace import Trace
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.writer import write_provisional
from zprof.version import __version__

_MAX_GAPS = 200
_MAX_TEXT = 120
_MAX_LANES = 4


def write_trace_tables(job: TraceJob, on_bytes: Callable[[int], None]) -> RankFacts | Refusal:
    """Write the tables of one trace to the job's folder, which is replaced.

    Raises:
        OSError: the tables cannot be written.
    """
    try:
        trace, ascend_gaps = read_ascend_lanes(read_trace(Path(job.path), on_bytes))
        if not len(trace):
            return Refusal(reason="contains no event with a duration", hint=COPY_AGAIN)
        return write_tables(trace, Path(job.folder), ascend_gaps)
    except BadInput as error:
        return Refusal(reason=error.message.removeprefix(f"{job.path}: "), hint=error.hint)
    except MemoryError:
        reason = "not enough memory to read it"
        return Refusal(reason=reason, hint="use fewer --workers", is_permanent=False)


def write_tables(trace: Trace, folder: Path, more_gaps: Sequence[Gap] = ()) -> RankFacts:
    """Write the tables of a trace to a folder, which is replaced.

    Raises:
        OSError: the tables cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:  # pyarrow compresses the large table without Python's lock
        events = pool.submit(write_provisional, folder, "events", build_event_columns(trace))
        collectives, groups, gaps = convert_collectives(trace)
        steps = mark_steps(trace)
        small_tables: Tables = {"collectives": collectives, "mark": steps.columns}
        if groups["group"]:
            small_tables["process_group"] = groups
        files = {name: write_provisional(folder, name, columns) for name, columns in small_tables.items()}
        files = {"events": events.result(), **files}
    header, lanes = trace.header, find_unknown_lanes(trace)
    # The analysis measures no times for a rank with this gap.
    lane_gaps = [make_gap("device_not_understood", lanes=_name_lanes(lanes))] if lanes else []
    return RankFacts(
        version=__version__,
        rank=header.rank,
        world_size=header.world_size,
        backend=_shorten(header.backend),
        device=detect_device(trace, lanes),
        host=_shorten(header.host),
        files=files,
        steps=steps.numbers,
        collectives=files["collectives"].rows,
        gaps=(*lane_gaps, *more_gaps, *list_read_gaps(trace.report), *steps.gaps, *gaps)[:_MAX_GAPS],
    )


def _name_lanes(lanes: Sequence[tuple[str, int]]) -> list[str]:
    names = [f"{_shorten(name)} ({events} events)" for name, events in lanes[:_MAX_LANES]]
    return [*names, f"{len(lanes) - _MAX_LANES} more"] if len(lanes) > _MAX_LANES else names


def _shorten(text: str) -> str:
    return shorten(printable(text), _MAX_TEXT)
