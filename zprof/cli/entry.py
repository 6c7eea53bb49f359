"""Run the command line: parse the arguments, run the command, print errors and return the exit code.

Only ``run_command()`` prints errors.  Exit codes: 0 ok, 1 check failed, 2 bad input, usage or environment,
3 not enough data, 70 internal error.  130 interrupted comes from ``zprof.cli.main()``, which catches a Ctrl-C
while this module is imported, too.
"""

import os
from collections.abc import Callable, Sequence

from zprof.base.errors import BadInput, ZprofError
from zprof.base.formatting import printable
from zprof.cli import console
from zprof.cli.parser import parse
from zprof.cli.registry import Handover
from zprof.process.interrupts import raise_lost_interrupt
from zprof.process.memory_limit import import_within_memory_limit, is_memory_shortage, read_memory_limit

ENVIRONMENT_ERROR = BadInput.exit_code
INTERNAL_ERROR = 70
#: Maximum characters of a word in an error: paths may have 4,096, and arguments have no limit.
_MAX_WORD = 800


def run_command(arguments: Sequence[str]) -> int | Callable[[], int]:
    """Run the command given by the arguments; return the exit code, or the user's program that runs next.

    Raises:
        KeyboardInterrupt: After a Ctrl-C, even if other code turned it into a different error.
    """
    console.open_closed_streams()
    with import_within_memory_limit():
        try:
            try:
                code = _run(arguments)
            except SystemExit as end:  # from argparse, after --help and --version
                code = end.code if isinstance(end.code, int) else 0
            console.flush()
            return code
        except Handover as handover:
            return handover.program
        except ZprofError as error:
            _print_error(error.message, error.hint)
            return error.exit_code
        except console.StdoutClosed:
            return 0
        except Exception as error:
            raise_lost_interrupt()
            return _report_unexpected(error)


def _run(arguments: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell requests completions
        from zprof.cli.completion import complete

        complete()
    command, parsed = parse(arguments)
    columns = console.get_columns()
    if columns is None:
        return command.run(parsed)
    from zprof.reports.layout import page_columns

    with page_columns(columns):
        return command.run(parsed)


def _print_error(message: str, hint: str) -> None:
    """Print an error as one line, with long words shortened."""
    line = printable(f"zprof: {message}" + (f"; {hint}" if hint else ""))
    words = [
        word if len(word) <= _MAX_WORD else f"{word[: _MAX_WORD // 2]}…{word[-_MAX_WORD // 2 :]}"
        for word in line.split(" ")
    ]
    console.print_note(" ".join(words))


def _report_unexpected(error: Exception) -> int:
    """Report an unexpected error; memory shortage and system errors are not bugs of zprof."""
    if os.environ.get("ZPROF_DEBUG") == "1":
        from traceback import print_exception

        print_exception(error)
    if is_memory_shortage(error):
        # Report that memory ran out, using as little memory as possible.
        try:
            limit = read_memory_limit()
            if limit is None:
                _print_error("not enough memory", "use a machine with more memory, or fewer ranks at a time")
            else:
                _print_error(
                    f"not enough memory: this process is limited to {limit >> 20} MiB", "raise ulimit -v"
                )
        except MemoryError:
            os.write(2, b"zprof: not enough memory\n")
        return ENVIRONMENT_ERROR
    if isinstance(error, OSError) and error.errno is not None:
        message = (
            f"{error.filename}: {os.strerror(error.errno)}"
            if error.filename is not None
            else error.strerror or os.strerror(error.errno)  # "No usable temporary directory found in ..."
        )
        _print_error(message, "set ZPROF_DEBUG=1 to see where this happened")
        return ENVIRONMENT_ERROR
    _print_error(
        f"internal error, {type(error).__name__}: {str(error)[:200]}",
        "this is a bug in zprof: run again with ZPROF_DEBUG=1 and report the output",
    )
    return INTERNAL_ERROR
