"""What a command is."""

import argparse
from typing import Protocol


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
