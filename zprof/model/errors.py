"""Define errors that users see on one line: the problem, its location, and what to do.

Only ``main()`` of the command line prints them and converts them to an exit code.
"""


class ZprofError(Exception):
    """Base class of all errors that zprof raises deliberately."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckFailed(ZprofError):
    """A limit was exceeded."""

    exit_code = 1


class BadInput(ZprofError):
    """A file or an argument cannot be used."""

    exit_code = 2


class MissingData(ZprofError):
    """The input is valid but does not contain enough data."""

    exit_code = 3
