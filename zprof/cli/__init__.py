"""Command line: one module per command, looked up by name in the registry."""

# PYTHON_ARGCOMPLETE_OK: argcomplete's global completion completes zprof, too

from zprof.cli.entry import main

__all__ = ["main"]
