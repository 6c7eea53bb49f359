"""``zprof export``: write a run as a trace for a viewer."""

import argparse
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from zprof.cli import console
from zprof.cli.inputs import open_run
from zprof.cli.quantities import parse_number_ranges
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

_SUFFIXES = (".json", ".json.gz")
#: gzip level; higher levels take longer than writing the uncompressed data.
_GZIP_LEVEL = 5


class ExportCommand:
    """Write all ranks of a run as one trace on one clock, for ui.perfetto.dev or chrome://tracing.

    Each rank is shown as a process with its steps, exposed waits and transfers,
    collectives (with their wait and bytes), streams and threads. Arrows point from the
    last rank to reach a collective to the ranks that waited for it.

    examples:
      zprof export zero3.zprof --perfetto zero3.json.gz
      zprof export zero3.zprof --perfetto step4.json --steps 4 --ranks 0,3
      zprof export traces/ --perfetto all.json.gz --steps 3-5 --force
    """

    name = "export"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, the output file, and the ranks and steps."""
        parser.add_argument(
            "run", metavar="RUN", type=Path, help="recording folder, trace, or a folder of traces"
        )
        parser.add_argument(
            "--perfetto", metavar="FILE", type=Path, help="write a Chrome JSON trace (.json or .json.gz)"
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
        parser.add_argument("--python", action="store_true", help="include Python stack frames")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Analyse the run, write the trace, and print a summary."""
        from zprof.cli.output import check_output_target, open_atomically

        target: Path | None = arguments.perfetto
        if target is None:
            raise BadInput("no output format given", hint="use --perfetto FILE")
        if not target.name.endswith(_SUFFIXES):
            raise BadInput(f"{target}: not a .json or .json.gz file", hint="use one of these suffixes")
        check_output_target(target, force=arguments.force)
        run = open_run(arguments.run)
        from zprof.integrations.perfetto.export import export_trace
        from zprof.integrations.perfetto.rank_rows import ExportChoice

        choice = ExportChoice(ranks=arguments.ranks, steps=arguments.steps, python=arguments.python)
        with open_atomically(target, force=arguments.force) as file, _open_output(file, target) as out:
            exported = export_trace(run, choice, out)
        for note in exported.notes:
            console.print_note(f"zprof: {printable(note)}")
        ranks = "1 rank" if len(exported.ranks) == 1 else f"{len(exported.ranks)} ranks"
        console.print_note(f"zprof: wrote {printable(target)} ({ranks}, {exported.slices} slices)")
        console.print_note("zprof: next, open it at https://ui.perfetto.dev (the file stays on your machine)")
        return 0


@contextmanager
def _open_output(file: BinaryIO, target: Path) -> Iterator[BinaryIO]:
    """Yield the file itself, or a gzip stream into it."""
    if not target.name.endswith(".gz"):
        yield file
        return
    # No name and no time stamp, so that the same run gives the same bytes.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        yield cast(BinaryIO, packed)
