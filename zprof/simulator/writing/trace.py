"""Write the trace of one rank to a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from isal import igzip

from zprof.simulator.engine.schedule import Schedule
from zprof.simulator.plan import Vendor
from zprof.simulator.writing import file
from zprof.simulator.writing.cpu import CpuWriter
from zprof.simulator.writing.device import DeviceWriter
from zprof.simulator.writing.dialects import Amd, Nvidia
from zprof.simulator.writing.events import EventSheet, LocalTimes
from zprof.simulator.writing.file import add_padding
from zprof.simulator.writing.templates import get_process_id

#: At this level compression is cheap, and the file shrinks to a tenth.
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One written file.  ``lost``: numbers of the rank's collectives that are not in it."""

    file: str
    events: int
    dropped: int
    lost: frozenset[int]


def write_trace(schedule: Schedule, times: LocalTimes, rank: int, folder: Path) -> Written:
    """Write ``folder/rank{N}.json.gz`` for one rank."""
    recording = schedule.plan.recording
    sheet, lost, text = _format_trace(schedule, times, rank)
    digits = len(str(schedule.plan.ranks - 1))
    name = f"rank{rank:0{digits}d}.json" + (".gz" if recording.compress else "")
    data = text.encode()
    (folder / name).write_bytes(
        igzip.compress(data, _COMPRESSION_LEVEL, mtime=0) if recording.compress else data
    )
    return Written(file=name, events=len(sheet.texts), dropped=sheet.dropped, lost=frozenset(lost))


def _format_trace(schedule: Schedule, times: LocalTimes, rank: int) -> tuple[EventSheet, set[int], str]:
    plan = schedule.plan
    random = np.random.Generator(np.random.PCG64([plan.seed, 1 + rank]))
    sheet = EventSheet(
        times.local_opening(rank),
        file.profiler_base_ns(),
        plan.recording.stamps,
        (plan.drop_probability, random),
    )
    moments = times.moments(rank)
    process = get_process_id(rank)
    rows: Sequence[tuple[int, str]]
    if plan.vendor is Vendor.GLOO:
        cpu = CpuWriter(schedule, rank, sheet)
        for moment in moments:
            cpu.write(moment)
        properties, extras, device, lost = "[]", [], None, cpu.lost
        rows = cpu.rows
    else:
        dialect = Nvidia() if plan.vendor is Vendor.NVIDIA else Amd()
        writer = DeviceWriter(schedule, rank, dialect, sheet)
        for moment in moments:
            writer.write(moment)
        properties, extras, device, lost = (
            dialect.properties(),
            dialect.extras(),
            dialect.pid(rank),
            writer.lost,
        )
        rows = [
            (process, f"thread {process} (python3)"),
            *((stream, f"stream {stream} ") for stream in writer.streams),
        ]
    file.add_frame(plan, sheet, process, device, rows)
    head, tail = file.format_head(schedule, rank, properties, extras), file.format_tail(plan, rank)
    add_padding(plan, sheet, process, len(head) + len(tail))
    separator = ",\n" if plan.recording.indented else ","
    return sheet, lost, head + separator.join(sheet.texts) + tail
