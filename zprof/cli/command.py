"""What a command is."""

import argparse
from collections.abc import Callable
from typing import Protocol


class Handover(Exception):
    """Raised by a command that runs the user's own program: what that raises is no error of zprof."""

    def __init__(self, program: Callable[[], int]) -> None:
        super().__init__()
        self.program = program


class Command(Protocol):
    """One command of ``zprof``.

    The class docstring is its help; a part after an empty line with ``example:`` ends it.  Modules of
    commands import what costs time inside ``run``.
    """

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code.  Raises ZprofError for everything that a user can mend."""
