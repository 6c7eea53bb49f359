"""``zprof import``: turn files of other programs into a run."""

import argparse
from pathlib import Path

from zprof.cli import console
from zprof.model.formatting import printable


class ImportCommand:
    """Turn Kineto traces or CUDA memory snapshots into a run, one file a rank.

    A trace (torch.profiler's export_chrome_trace) may be .json, .gz or .zst; what
    a file is, its content says.  The rank is the one that the trace states, else
    the number in its name (rank3, worker-3, _3.json), else the order; where it was
    guessed, zprof says so.  Ranks without a file, and files that are damaged, are
    gaps of the run.

    Traces are read in parallel, one process each.  With --executor the workers of
    a Dask cluster read them: they need zprof, and the traces and RUN on a file
    system that they share with this machine (pip install 'zprof[dask]').
    Dask's own setting of the allocator costs them a tenth to a fifth of their
    speed; started with MALLOC_MMAP_THRESHOLD_=33554432 and
    MALLOC_TRIM_THRESHOLD_=134217728 in their environment, they keep it.

    A snapshot (torch.cuda.memory._dump_snapshot) is a pickle: it is read in a
    process of its own, with limits on memory and time, and nothing in it is ever
    executed.  Commands that take a RUN take traces and snapshots too.

    examples:
      zprof import trace.json.gz -o customer.zprof
      zprof import traces/ -o customer.zprof --workers 8
      zprof import traces/ -o customer.zprof --executor dask://scheduler:8786
      zprof import rank0.pickle rank1.pickle -o customer.zprof
      zprof import snapshots/ -o customer.zprof --force
    """

    name = "import"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the files, the run to write, and the workers."""
        parser.add_argument(
            "paths",
            metavar="PATH",
            type=Path,
            nargs="+",
            help="a Kineto trace or a CUDA memory snapshot, or a folder of them",
        )
        parser.add_argument("-o", "--output", metavar="RUN", type=Path, required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--workers",
            metavar="N",
            type=_parse_workers,
            default=0,
            help="processes that read traces (default: one a processor)",
        )
        where.add_argument(
            "--executor",
            metavar="dask://HOST:PORT",
            default="",
            help="let a Dask cluster read the traces; it needs a shared file system",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the files, and print the run and its number of ranks."""
        from zprof.cli.progress import import_progress
        from zprof.integrations.imports.import_paths import import_paths
        from zprof.integrations.imports.options import ImportOptions

        options = ImportOptions(workers=arguments.workers, executor=arguments.executor)
        with import_progress() as watch:
            made = import_paths(
                arguments.paths, arguments.output, arguments.force, options=options, watch=watch
            )
        for note in made.notes:
            console.note(f"zprof: {printable(note)}")
        count = len(made.files)
        ranks = f"{count} rank" if count == 1 else f"{count} ranks"
        console.note(f"zprof: wrote {printable(made.run)} ({ranks})")
        console.note(f"zprof: next, zprof report {printable(made.run)}")
        return 0


def _parse_workers(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)
