"""The table of keys in docs/tui.md.  ``python -m tests.support.tui_docs`` writes it anew."""

from itertools import groupby
from pathlib import Path

from zprof.tui.keys import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "tui.md"
BEGIN, END = "<!-- keys: made from zprof/tui/keys.py -->\n", "<!-- end of keys -->\n"


def keys_table() -> str:
    """One table for each place."""
    parts = []
    for where, keys in groupby(
        sorted(KEYS, key=lambda key: list(type(key.where)).index(key.where)), lambda k: k.where
    ):
        rows = [f"| {_code(key.written)} | {key.help} |" for key in keys]
        parts.append("\n".join([f"**{where.value}**", "", "| key | does |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _code(written: str) -> str:
    return ", ".join(f"`{one}`" for one in written.split(", "))


def with_keys(text: str) -> str:
    """The page with the table of now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{keys_table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_keys(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
