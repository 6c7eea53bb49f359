"""What a bundle holds, for whoever is about to give it away."""

from collections.abc import Sequence

from zprof.model.printable import printable
from zprof.model.units import format_bytes
from zprof.reports.text.layout import heading, table, wrap


def render(parts: Sequence[tuple[str, str, int]], replaced: int, left_out: Sequence[str]) -> str:
    """In 80 columns.

    Args:
        parts: Name, what it is, and bytes of each.
        replaced: How many names got stand-ins.
        left_out: Keys and tables that are not in it.
    """
    lines = [heading("BUNDLE", "names have stand-ins; of texts only words of zprof are in it")]
    lines += table([[printable(f"{name}: {says}"), format_bytes(size)] for name, says, size in parts])
    lines += wrap(f"{replaced} names of modules, groups, hosts and runs were replaced")
    if left_out:
        lines += wrap(f"left out: {printable(', '.join(left_out))}")
    return "\n".join(lines) + "\n"
