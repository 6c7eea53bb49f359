"""``main()``: the only place that prints errors and turns them into exit codes.

0 fine, 1 check failed, 2 bad input or usage, 3 not enough data, 70 internal, 130 interrupted.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from zprof.cli.command import Handover
from zprof.cli.parser import parse
from zprof.cli.terminal import console
from zprof.model.errors import BadInput, ZprofError
from zprof.model.printable import printable

INTERNAL = 70
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; the exit code."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except Handover as handover:
        program = handover.program
    except ZprofError as error:
        _say(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        _close_stdout()
        return 0
    except KeyboardInterrupt:
        console.note("zprof: interrupted")
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        return _internal(error)
    return program()


def _run(arguments: Sequence[str]) -> int:
    command, parsed = parse(arguments)
    if command is None:
        raise BadInput("no command given", hint="zprof --help lists them")
    return command.run(parsed)


def _say(message: str, hint: str) -> None:
    line = f"zprof: {message}" + (f"; {hint}" if hint else "")
    console.note(printable(line))


def _internal(error: Exception) -> int:
    if os.environ.get("ZPROF_DEBUG") == "1":
        traceback.print_exception(error)
    _say(
        f"internal error, {type(error).__name__}: {str(error)[:200]}",
        "this is a fault of zprof: run again with ZPROF_DEBUG=1 and report what it prints",
    )
    return INTERNAL


def _close_stdout() -> None:
    """The reader went away (``| head``): keep Python from complaining when it flushes at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
