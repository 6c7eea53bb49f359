"""Write the trace of one rank to a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from isal import igzip
from msgspec import Struct

from zprof.simulator.engine.schedule import SimulatedRun
from zprof.simulator.plan import Vendor
from zprof.simulator.whole_files import write_file
from zprof.simulator.writing import file
from zprof.simulator.writing.cpu import CpuWriter
from zprof.simulator.writing.device import DeviceWriter
from zprof.simulator.writing.dialects import Amd, Nvidia
from zprof.simulator.writing.events import EventBuffer, LocalTimes
from zprof.simulator.writing.file import add_padding
from zprof.simulator.writing.templates import get_process_id

#: At this level, compression is cheap and reduces the file to a tenth.
_COMPRESSION_LEVEL = 1


class WrittenTrace(Struct, frozen=True, kw_only=True):
    """One written file.  ``missing_collectives``: numbers of the rank's collectives that are not in
    the file.
    """

    file: str
    events: int
    dropped: int
    missing_collectives: frozenset[int]


def write_trace(schedule: SimulatedRun, times: LocalTimes, rank: int, folder: Path) -> WrittenTrace:
    """Write ``folder/rank{N}.json.gz`` for one rank."""
    recording = schedule.plan.recording
    buffer, missing_collectives, text = _format_trace(schedule, times, rank)
    width = len(str(schedule.plan.ranks - 1))
    name = f"rank{rank:0{width}d}.json" + (".gz" if recording.compress else "")
    data = text.encode()
    write_file(
        folder / name, igzip.compress(data, _COMPRESSION_LEVEL, mtime=0) if recording.compress else data
    )
    return WrittenTrace(
        file=name,
        events=len(buffer.texts),
        dropped=buffer.dropped,
        missing_collectives=frozenset(missing_collectives),
    )


def _format_trace(schedule: SimulatedRun, times: LocalTimes, rank: int) -> tuple[EventBuffer, set[int], str]:
    plan = schedule.plan
    rng = np.random.Generator(np.random.PCG64([plan.seed, 1 + rank]))
    buffer = EventBuffer(
        times.get_local_window(rank),
        file.get_profiler_base_ns(),
        plan.recording.stamps,
        (plan.drop_probability, rng),
    )
    timings = times.get_timings(rank)
    process = get_process_id(rank)
    rows: Sequence[tuple[int, str]]
    if plan.vendor is Vendor.GLOO:
        cpu = CpuWriter(schedule, rank, buffer)
        for timing in timings:
            cpu.write(timing)
        properties, extras, device, missing_collectives = "[]", [], None, cpu.missing_collectives
        rows = cpu.rows
    else:
        dialect = Nvidia() if plan.vendor is Vendor.NVIDIA else Amd()
        writer = DeviceWriter(schedule, rank, dialect, buffer)
        for timing in timings:
            writer.write(timing)
        properties, extras, device, missing_collectives = (
            dialect.properties(),
            dialect.extras(),
            dialect.pid(rank),
            writer.missing_collectives,
        )
        rows = [
            (process, f"thread {process} (python3)"),
            *((stream, f"stream {stream} ") for stream in writer.streams),
        ]
    file.add_frame(plan, buffer, process, device, rows)
    head, tail = file.format_head(schedule, rank, properties, extras), file.format_tail(plan, rank)
    add_padding(plan, buffer, process, len(head) + len(tail))
    separator = ",\n" if plan.recording.indented else ","
    return buffer, missing_collectives, head + separator.join(buffer.texts) + tail
