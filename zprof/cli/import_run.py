"""``zprof import``: convert traces, memory snapshots or flight-recorder dumps into a run."""

import argparse
from pathlib import Path

from zprof.base.formatting import format_next_step, printable
from zprof.cli import console
from zprof.cli.shared_options import add_mesh_option


class ImportCommand:
    """Convert Kineto traces or CUDA memory snapshots into a run, one file per rank.

    A trace (from torch.profiler's export_chrome_trace) may be plain JSON, .gz or .zst;
    the file type is detected from the content. The rank comes from the trace itself, or
    from the number in the file name (rank3, worker-3, _3.json), or from the file order;
    zprof tells you if it had to guess. Ranks without a file and damaged files are listed
    as gaps of the run.

    Traces are read in parallel, one process each. With --executor the workers of a Dask
    cluster read them (pip install 'zprof[dask]'); the workers need zprof and a file system
    shared with this machine for the traces and RUN. Dask's default allocator settings make
    reading 10 to 20 % slower; to avoid that, start the workers with
    MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=134217728 in the environment.

    A snapshot (from torch.cuda.memory._dump_snapshot) is a pickle. It is read in a separate
    process with limits on memory and time, and nothing in it is executed. Commands that
    take a RUN accept traces, snapshots and dumps as well.

    A dump of PyTorch's flight recorder (what a rank writes when a collective times out) is a
    pickle or JSON, and is read in the same way. Its rank comes from its name and is checked
    against its process groups. A log with lines of the NCCL watchdog can stand in for it.

    examples:
      zprof import trace.json.gz -o customer.zprof
      zprof import traces/ -o customer.zprof --workers 8
      zprof import traces/ -o customer.zprof --mesh pp=4,dp=2,tp=8
      zprof import traces/ -o customer.zprof --executor dask://scheduler:8786
      zprof import rank0.pickle rank1.pickle -o customer.zprof
      zprof import snapshots/ -o customer.zprof --force
      zprof import nccl_traces/ -o stuck.zprof
    """

    name = "import"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the files, the run to write, and the workers."""
        parser.add_argument(
            "paths",
            metavar="PATH",
            type=Path,
            nargs="+",
            help="Kineto trace, CUDA memory snapshot or flight-recorder dump, or a folder of them",
        )
        parser.add_argument("-o", "--output", metavar="RUN", type=Path, required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")
        add_mesh_option(parser)
        location = parser.add_mutually_exclusive_group()
        location.add_argument(
            "--workers",
            metavar="N",
            type=_parse_workers,
            default=0,
            help="processes that read traces (default: one per processor)",
        )
        location.add_argument(
            "--executor",
            metavar="dask://HOST:PORT",
            default="",
            help="read the traces on a Dask cluster; needs a shared file system",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the files, and print the run and its number of ranks."""
        from zprof.cli.progress import import_progress
        from zprof.collectors.read.imports.import_paths import import_paths
        from zprof.collectors.read.imports.options import ImportOptions

        options = ImportOptions(workers=arguments.workers, executor=arguments.executor, mesh=arguments.mesh)
        with import_progress() as progress:
            imported = import_paths(
                arguments.paths, arguments.output, arguments.force, options=options, progress=progress
            )
        for note in imported.notes:
            console.print_note(f"zprof: {printable(note)}")
        count = len(imported.files)
        ranks = f"{count} rank" if count == 1 else f"{count} ranks"
        console.print_note(
            f"zprof: wrote {printable(imported.run)} ({ranks}); {format_next_step(imported.run)}"
        )
        return 0


def _parse_workers(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)
