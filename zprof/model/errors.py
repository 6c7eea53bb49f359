"""Errors that a user sees as one line: what, where, what to do.

Only ``main()`` of the command line prints them and turns them into an exit code.
"""


class ZprofError(Exception):
    """Base of all errors that zprof raises on purpose."""

    exit_code = 70

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
    """The input is valid but holds too little to answer."""

    exit_code = 3
