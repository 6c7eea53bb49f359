"""Command line: one module per command, looked up by name in the registry.

Importing this package imports nothing else, so ``main()`` starts, and catches a Ctrl-C, as early as possible.
"""

# PYTHON_ARGCOMPLETE_OK: argcomplete's global completion completes zprof, too

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the import
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command given by the arguments and return the exit code.

    By default they are the process's arguments; the process ends afterwards, so a Ctrl-C while Python shuts
    down is ignored.
    """
    try:
        from zprof.process.interrupts import ignore_interrupts, keep_interrupts, raise_lost_interrupt

        with keep_interrupts():
            from zprof.cli.entry import run_command

            raise_lost_interrupt()
            program = run_command(sys.argv[1:] if arguments is None else arguments)
        if isinstance(program, int):
            if arguments is None:
                ignore_interrupts()
            return program
    except KeyboardInterrupt:
        is_process_ending = arguments is None
        import signal

        from zprof.process.interrupts import ignore_interrupts

        before = ignore_interrupts()  # another Ctrl-C changes nothing
        from zprof.cli import console

        # If the interrupt arrived within exec() of a string (as used by dataclasses), ``python -m`` ends with
        # SIGINT regardless of the exit code, even though the exception was caught. Another exec() clears that
        # state.
        exec("")
        console.print_note("zprof: interrupted")
        if not is_process_ending and before is not None:
            signal.signal(signal.SIGINT, before)
        return _INTERRUPTED
    return program()
