"""Import Nsight exports: one file per node, each with several ranks."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from zprof.collectors.read.imports.file_ranks import RankedFile, refuse_duplicate_ranks
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.trace_tables import write_tables
from zprof.collectors.read.imports.traces import ReadFile, place_ranks
from zprof.collectors.read.kineto.trace import TraceHeader, TraceProcessGroup
from zprof.collectors.read.nsight.reader import NsightRank, read_nsight


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
    with ExitStack() as stack:
        found: list[NsightRank] = []
        done_bytes = 0
        for path in paths:
            found += stack.enter_context(read_nsight(path))
            done_bytes += path.stat().st_size
            progress.report_bytes(done_bytes)
            progress.finish_rank()
        headers, rank_notes = _number_ranks([rank.header for rank in found])
        files = [
            RankedFile(rank=header.rank or 0, path=rank.path)
            for rank, header in zip(found, headers, strict=True)
        ]
        refuse_duplicate_ranks(files)
        reads = {}
        for file, rank, header in zip(files, found, headers, strict=True):
            folder = run / f"file{file.rank:05d}"
            facts = write_tables(rank.load(header), folder)  # one rank at a time is in memory
            reads[file.rank] = ReadFile(position=file.rank, path=file.path, folder=folder, facts=facts)
    place_ranks(run, reads, (*notes, *rank_notes), {})
    return Written(files=tuple(files), notes=(*notes, *rank_notes))


def _number_ranks(headers: Sequence[TraceHeader]) -> tuple[list[TraceHeader], tuple[str, ...]]:
    """Return the headers with their ranks; without communicators the order of files and devices decides.

    Of two ranks, all collectives are in one group.
    """
    if all(header.rank is not None for header in headers):
        return list(headers), ()
    group = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1))
    groups = (group,) if len(headers) == 2 else ()
    numbered = [
        replace(header, rank=rank, world_size=len(headers), groups=groups)
        for rank, header in enumerate(headers)
    ]
    note = "ranks by the order of files and devices: no NVTX payload of NCCL names them"
    return numbered, (note,) if len(headers) > 1 else ()
