"""Define errors that users see on one line: the problem, its location, and what to do.

Only ``main()`` of the command line prints them and converts them to an exit code. In Python the hint is a
note of the exception, and a notebook shows one line.
"""


class ZprofError(Exception):
    """Base class of all errors that zprof raises deliberately."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(hint)

    def _render_traceback_(self) -> list[str]:
        """Return the one line that a notebook shows instead of a traceback; IPython looks for this method."""
        return [f"{type(self).__name__}: {self.message}" + (f"; {self.hint}" if self.hint else "")]


class CheckFailed(ZprofError):
    """A limit was exceeded."""

    exit_code = 1


class BadInput(ZprofError):
    """A file or an argument cannot be used."""

    exit_code = 2


class MissingData(ZprofError):
    """The input is valid but does not contain enough data."""

    exit_code = 3
