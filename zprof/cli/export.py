"""``zprof export``: write a run as a trace for a viewer."""

import argparse
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.base.parsing import parse_number_ranges
from zprof.cli import console
from zprof.cli.inputs import open_run
from zprof.cli.shared_options import RUN_HELP

_SUFFIXES = (".json", ".json.gz")
#: Value of --perfetto without a file.
_NO_FILE = Path("-")
#: gzip level; higher levels take longer than writing the uncompressed data.
_GZIP_LEVEL = 5


class ExportCommand:
    """Write all ranks of a run as one trace on one clock, for ui.perfetto.dev or chrome://tracing.

    Each rank is shown as a process with its steps, exposed waits and transfers,
    collectives (with their wait and bytes), streams and threads. Arrows point from the
    last rank to reach a collective to the ranks that waited for it.

    examples:
      zprof export zero3.zprof --perfetto -o zero3.json.gz
      zprof export zero3.zprof --perfetto -o step4.json --steps 4 --ranks 0,3
      zprof export traces/ --perfetto -o all.json.gz --steps 3-5 --force
      zprof export job.parquet --perfetto --ideal -o job.json.gz    pipeline: the ideal step beside
    """

    name = "export"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, the output file, and the ranks and steps."""
        parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help=RUN_HELP)
        parser.add_argument(
            "--perfetto",
            metavar="FILE",
            type=Path,
            nargs="?",
            const=_NO_FILE,
            help="write a Chrome JSON trace; with FILE it is the old spelling of -o FILE",
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="file to write, .json or .json.gz"
        )
        parser.add_argument(
            "--steps",
            metavar="STEPS",
            type=parse_number_ranges,
            help="export only these steps, e.g. 4, 3-5 or 3,7",
        )
        parser.add_argument(
            "--ranks",
            metavar="RANKS",
            type=parse_number_ranges,
            help="export only these ranks, e.g. 0, 0-3 or 0,8",
        )
        parser.add_argument(
            "--ideal",
            action="store_true",
            help="pipelines: passes and messages of each stage, the ideal timeline beside the recorded one",
        )
        parser.add_argument("--python", action="store_true", help="include Python stack frames")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Analyse the run, write the trace, and print a summary."""
        from zprof.cli.output import check_output_target, open_atomically

        path, target = _choose_files(arguments)
        if not target.name.endswith(_SUFFIXES):
            raise BadInput(f"{target}: not a .json or .json.gz file", hint="use one of these suffixes")
        check_output_target(target, force=arguments.force)
        run = open_run(path, is_analysed=False)
        from zprof.integrations.perfetto.export import export_trace
        from zprof.integrations.perfetto.operations import export_operations
        from zprof.integrations.perfetto.rank_rows import ExportChoice

        choice = ExportChoice(ranks=arguments.ranks, steps=arguments.steps, python=arguments.python)
        with open_atomically(target, force=arguments.force) as file, _open_output(file, target) as out:
            if arguments.ideal or run.manifest.operations is not None:
                exported = export_operations(run, choice, out, with_ideal=arguments.ideal)
            else:
                exported = export_trace(run, choice, out)
        for note in exported.notes:
            console.print_note(f"zprof: {printable(note)}")
        ranks = "1 rank" if len(exported.ranks) == 1 else f"{len(exported.ranks)} ranks"
        console.print_note(f"zprof: wrote {printable(target)} ({ranks}, {exported.slices} slices)")
        console.print_note("zprof: next, open it at https://ui.perfetto.dev (the file stays on your machine)")
        return 0


def _choose_files(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return the run and the file to write.

    Raises:
        BadInput: The format, the run or the file is missing, or there are two files.
    """
    run: Path | None = arguments.run
    target: Path | None = arguments.output
    value: Path | None = arguments.perfetto
    if value is None:
        raise BadInput("no output format given", hint="for example: zprof export RUN --perfetto -o FILE")
    if value is not _NO_FILE:
        if run is None:  # --perfetto RUN -o FILE
            run = value
        elif target is None:
            target = value
        else:
            raise BadInput(
                f"two files: {printable(value)} and -o {printable(target)}", hint="give the file to -o only"
            )
    if run is None or target is None:
        missing = "run" if run is None else "file"
        raise BadInput(f"no {missing} given", hint="for example: zprof export RUN --perfetto -o FILE")
    return run, target


@contextmanager
def _open_output(file: BinaryIO, target: Path) -> Iterator[BinaryIO]:
    """Yield the file itself, or a gzip stream into it."""
    if not target.name.endswith(".gz"):
        yield file
        return
    # Without a name and a time stamp, the same run gives the same bytes.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        yield cast(BinaryIO, packed)
