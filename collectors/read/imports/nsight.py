"""Import Nsight exports: one file per node, each with several ranks."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from zprof.collectors.read.imports.file_ranks import RankedFile, refuse_duplicate_ranks
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.trace_tables import write_tables
from zprof.collectors.read.imports.traces import ReadFile, place_ranks
from zprof.collectors.read.kineto.trace import Trace, TraceProcessGroup
from zprof.collectors.read.nsight.reader import read_nsight


def write_nsight(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the ranks of the exports as the run ``run``; return the file of each rank, and notes.

    Raises:
        BadInput: a file cannot be used, or two have the same rank.
        OSError: the run cannot be written.
    """
    progress.start(len(paths), sum(path.stat().st_size for path in paths))
    run.mkdir()
    found: list[tuple[Path, Trace]] = []
    done_bytes = 0
    for path in paths:
        found += [(path, trace) for trace in read_nsight(path)]
        done_bytes += path.stat().st_size
        progress.report_bytes(done_bytes)
        progress.finish_rank()
    traces, rank_notes = _number_ranks([trace for _, trace in found])
    files = [
        RankedFile(rank=trace.header.rank or 0, path=path)
        for (path, _), trace in zip(found, traces, strict=True)
    ]
    refuse_duplicate_ranks(files)
    reads = {}
    for file, trace in zip(files, traces, strict=True):
        folder = run / f"file{file.rank:05d}"
        facts = write_tables(trace, folder)
        reads[file.rank] = ReadFile(position=file.rank, path=file.path, folder=folder, facts=facts)
    place_ranks(run, reads, (*notes, *rank_notes), {})
    return Written(files=tuple(files), notes=(*notes, *rank_notes))


def _number_ranks(traces: Sequence[Trace]) -> tuple[list[Trace], tuple[str, ...]]:
    """Return the traces with their ranks; without communicators the order of files and devices decides.

    Of two ranks, all collectives are in one group.
    """
    if all(trace.header.rank is not None for trace in traces):
        return list(traces), ()
    group = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1))
    groups = (group,) if len(traces) == 2 else ()
    numbered = [
        replace(trace, header=replace(trace.header, rank=rank, world_size=len(traces), groups=groups))
        for rank, trace in enumerate(traces)
    ]
    note = "ranks by the order of files and devices: no NVTX payload of NCCL names them"
    return numbered, (note,) if len(traces) > 1 else ()
