"""``main()``: the only place that prints errors and turns them into exit codes.

0 fine, 1 check failed, 2 bad input, usage or surroundings, 3 not enough data, 70 internal, 130 interrupted.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Sequence

from zprof.cli.command import Handover
from zprof.cli.parser import parse
from zprof.cli.terminal import console
from zprof.model.errors import BadInput, ZprofError
from zprof.model.interrupts import interrupts_kept
from zprof.model.memory_limit import is_memory_shortage, memory_limit, within_memory_limit
from zprof.model.printable import printable

SURROUNDINGS = BadInput.exit_code
INTERNAL = 70
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; the exit code."""
    console.open_closed_streams()
    with interrupts_kept() as interrupts, within_memory_limit():
        try:
            return _run_and_flush(sys.argv[1:] if arguments is None else arguments)
        except Handover as handover:
            program = handover.program
        except ZprofError as error:
            _say(error.message, error.hint)
            return error.exit_code
        except console.ReaderGone:
            return 0
        except KeyboardInterrupt:
            return _interrupted()
        except Exception as error:
            return _interrupted() if interrupts.received else _unexpected(error)
    return program()


def _run_and_flush(arguments: Sequence[str]) -> int:
    try:
        code = _run(arguments)
    except SystemExit as end:  # of argparse, after --help and --version
        code = end.code if isinstance(end.code, int) else 0
    console.flush()
    return code


def _run(arguments: Sequence[str]) -> int:
    command, parsed = parse(arguments)
    if command is None:
        raise BadInput("no command given", hint="zprof --help lists them")
    if not console.is_terminal():
        return command.run(parsed)
    from zprof.reports.layout import page_columns

    with page_columns(shutil.get_terminal_size().columns):
        return command.run(parsed)


def _say(message: str, hint: str) -> None:
    line = f"zprof: {message}" + (f"; {hint}" if hint else "")
    console.note(printable(line))


def _interrupted() -> int:
    # Where the interrupt fell into exec() of a string (a dataclass is made so), ``python -m`` ends by SIGINT
    # whatever the exit code, even though the exception was caught; the next exec() of a string clears that.
    exec("")
    console.note("zprof: interrupted")
    return INTERRUPTED


def _unexpected(error: Exception) -> int:
    """No memory and what the system refuses are no faults of zprof; everything else is one."""
    if os.environ.get("ZPROF_DEBUG") == "1":
        traceback.print_exception(error)
    if is_memory_shortage(error):
        return _out_of_memory()
    if isinstance(error, OSError) and error.errno is not None:
        what = (
            f"{error.filename}: {os.strerror(error.errno)}"
            if error.filename is not None
            else error.strerror or os.strerror(error.errno)  # "No usable temporary directory found in ..."
        )
        _say(what, "the system refused that; ZPROF_DEBUG=1 shows where")
        return SURROUNDINGS
    _say(
        f"internal error, {type(error).__name__}: {str(error)[:200]}",
        "this is a fault of zprof: run again with ZPROF_DEBUG=1 and report what it prints",
    )
    return INTERNAL


def _out_of_memory() -> int:
    """Say so with what is left of it."""
    try:
        limit = memory_limit()
        if limit is None:
            _say("there is not enough memory", "use a machine with more, or fewer ranks at a time")
        else:
            _say(f"there is not enough memory: this process may use {limit >> 20} MiB", "raise ulimit -v")
    except MemoryError:
        os.write(2, b"zprof: there is not enough memory\n")
    return SURROUNDINGS
