"""docs/planner.md has every assumption of the code as it is: its formula, its source, and what deviates.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports/test_planner_docs.py`` writes the tables anew.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from zprof.cli.entry import parse
from zprof.model.machines import MACHINES
from zprof.model.plan import Assumption
from zprof.planner import plan, whatif

PAGE = Path(__file__).parents[3] / "docs/planner.md"
KNOWN: Mapping[str, Assumption] = {**plan.ASSUMPTIONS, **whatif.ASSUMPTIONS}
_PART = re.compile(r"(<!-- assumptions: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ("assumption", "formula", "source", "deviates")


def written(group: str) -> str:
    """The table of the assumptions whose keys begin so."""
    rows = [
        (f"`{key}`", *(_cell(text) for text in (entry.formula, entry.source, entry.deviation)))
        for key, entry in sorted(KNOWN.items())
        if key.partition(".")[0] == group
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in (HEAD, ["---"] * len(HEAD), *rows))
    return lines + "\n" if rows else ""


def _cell(text: str) -> str:
    return re.sub(r"([|_*<])", r"\\\1", text)


def page_now() -> str:
    return _PART.sub(lambda found: f"{found[1]}{written(found[2])}{found[3]}", PAGE.read_text("utf-8"))


def test_the_tables_are_those_of_the_code() -> None:
    now = page_now()
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        PAGE.write_text(now, encoding="utf-8")
    assert PAGE.read_text("utf-8") == now


def test_every_assumption_is_named_and_has_its_source() -> None:
    text = PAGE.read_text("utf-8")
    groups = set(re.findall(r"<!-- assumptions: (\w+) -->", text))
    assert groups == {key.partition(".")[0] for key in KNOWN}
    assert not [key for key in KNOWN if f"`{key}`" not in text]
    assert not [key for key, entry in KNOWN.items() if not entry.formula or not entry.source]


def test_commands_of_the_page_can_be_parsed() -> None:
    text = PAGE.read_text("utf-8")
    commands = re.findall(r"^    zprof (.+)$", text, re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        parse(command.split())
    for name in MACHINES:
        assert name in text
