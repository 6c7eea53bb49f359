"""Answers for programs that ask in steps: the tools of ``zprof mcp``."""
