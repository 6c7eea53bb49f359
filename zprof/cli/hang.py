"""``zprof hang``: explain why a job hangs, from the flight recorders and the logs of its ranks."""

import argparse
import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput, MissingData
from zprof.cli.inputs import diagnose_or_recall, open_dumps, refuse_missing
from zprof.cli.output import add_output_options, render_to

if TYPE_CHECKING:
    from zprof.model.report import Report

_STDIN = Path("-")
_CHUNK_BYTES, _MAX_STDIN_BYTES = 1 << 20, 1 << 30


class HangCommand:
    """Explain why a job hangs: which rank, which collective, which line.

    Reads the dumps of PyTorch's flight recorder (pickle or JSON, one per rank, or their
    folder), a run of zprof record --watch, logs of any kind: a file, several, a folder
    (torchrun --log-dir, Slurm, Ray), or pasted text on standard input (-), and what
    ncclras answers, as text or JSON: pass two answers, a minute apart.
    A dump is read in a separate process with limits, and nothing in it is executed.
    A line of a log is evidence about one rank only. Ranks without a dump or a line are
    listed but not blamed.

    Dumps are written when a collective times out, if TORCH_FR_BUFFER_SIZE (or
    TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT are set: zprof doctor
    shows whether a job would leave one.

    examples:
      zprof hang dumps/
      zprof hang nccl_trace_rank_* rank3.log
      zprof hang slurm-4711.out
      xclip -o | zprof hang -
      zprof hang first.json then.json        # of ncclras -f json
      zprof hang run.zprof -f json
      zprof hang dumps/ -o hang.html
    """

    name = "hang"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the dumps and the output options."""
        parser.add_argument(
            "paths",
            metavar="DUMP",
            type=Path,
            nargs="+",
            help="flight-recorder dump, log, answer of ncclras, - for standard input, folder of them, or run",
        )
        add_output_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Read the dumps and write the result."""
        if not arguments.output:  # else what is wrong with the files comes first
            refuse_missing(*(path for path in arguments.paths if path != _STDIN))
        from zprof.reports.formats import DIAGNOSES

        render_to(arguments, DIAGNOSES, lambda: _diagnose_dumps(arguments.paths))
        return 0


def _diagnose_dumps(paths: list[Path]) -> "Report":
    run = open_dumps([_save_stdin() if path == _STDIN else path for path in paths])
    report = diagnose_or_recall(run)
    if report.hang is None:
        raise MissingData(
            f"{paths[0]}: no flight recorder in it",
            hint="pass dumps of PyTorch's flight recorder, logs, or a run of zprof record --watch SECONDS",
        )
    return report


def _save_stdin() -> Path:
    """Return a file with the contents of standard input, which is deleted on exit.

    Raises:
        BadInput: Standard input is a terminal or too long.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise BadInput("-: standard input is a terminal", hint="pipe the text: zprof hang - < job.log")
    folder = tempfile.mkdtemp(prefix="zprof-stdin-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "stdin.log")
    with path.open("wb") as file:
        while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
            file.write(chunk)
            if file.tell() > _MAX_STDIN_BYTES:
                raise BadInput("-: more than 1 GiB of text", hint="pass the log as a file")
    return path
