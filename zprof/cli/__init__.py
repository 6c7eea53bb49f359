"""Command line: one module per command, looked up by name in the registry."""

from zprof.cli.entry import main

__all__ = ["main"]
