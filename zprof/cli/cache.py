"""``zprof cache``: show and clear cached imports and reports."""

import argparse
from typing import TYPE_CHECKING

from zprof.cli import console

if TYPE_CHECKING:
    from zprof.model.cache import CacheSummary


class CacheCommand:
    """Show or clear cached imports and reports.

    Traces and snapshots that were passed to a command are cached as runs, and so are
    finished reports: repeating a command on the same files then prints the result at once.
    If either kind exceeds its size limit, the least recently used entries are removed.
    ZPROF_NO_CACHE=1 disables the cache of reports; XDG_CACHE_HOME moves the folder.

    examples:
      zprof cache
      zprof cache clear
      zprof cache clear --only reports
    """

    name = "cache"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the action and the format."""
        parser.add_argument(
            "action",
            choices=("show", "clear"),
            nargs="?",
            default="show",
            help="show or clear (default: show)",
        )
        parser.add_argument("--only", choices=("imports", "reports"), help="only this kind of entries")
        parser.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="(default: %(default)s)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Show the cache, or clear it and show what was removed."""
        from zprof.cache.folder import clear_cache, list_entries, summarize_entries
        from zprof.model.cache import CacheKind

        kinds = (CacheKind(arguments.only),) if arguments.only else tuple(CacheKind)
        is_cleared = arguments.action == "clear"
        listed = clear_cache if is_cleared else list_entries
        entries = [entry for kind in kinds for entry in listed(kind)]
        _print_summary(summarize_entries(entries, kinds, is_removed=is_cleared), arguments.format)
        return 0


def _print_summary(summary: "CacheSummary", output_format: str) -> None:
    if output_format == "json":
        from zprof.model.json_format import to_json

        console.print_data(to_json(summary))
        return
    from zprof.reports.pages.small_pages import build_cache_page

    console.print_page(build_cache_page(summary))
