"""The command line: one module a command, found by name in the registry."""

from zprof.cli.entry import main

__all__ = ["main"]
