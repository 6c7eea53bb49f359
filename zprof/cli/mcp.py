"""``zprof mcp``: answer agents over the Model Context Protocol."""

import argparse
from pathlib import Path

from zprof.base.errors import BadInput, Extra, require_extra


class McpCommand:
    """Answer agents over the Model Context Protocol (MCP), on stdin and stdout.

    Seven tools: open, diagnose, compare, hang, query, explain, plan. Answers are bounded
    in size; each number has its unit, its path in the report and its bound. Files are
    read, and only zprof's cache is written. Strangers' texts are shortened and escaped.

    examples:
      zprof mcp --root /data/runs                   serve runs below a folder
      claude mcp add zprof -- zprof mcp --root /data/runs
    """

    name = "mcp"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the folder whose runs are served."""
        parser.add_argument(
            "--root",
            metavar="FOLDER",
            type=Path,
            default=Path(),
            help="serve paths below FOLDER (default: here)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until the client closes stdin."""
        require_extra(Extra.MCP, "zprof mcp")
        require_extra(Extra.SQL, "zprof mcp")
        if not arguments.root.is_dir():
            raise BadInput(f"{arguments.root}: no such folder", hint="give an existing folder")
        from zprof.agents.server import make_server

        make_server(arguments.root).run("stdio")
        return 0
