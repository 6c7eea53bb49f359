"""docs/planner.md has the assumptions of the code, the machines with their sources, and the errors of today.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports/test_planner_docs.py`` writes the tables anew.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.planner_published import list_outcomes, list_table
from zprof.cli.entry import parse
from zprof.model.machines import MACHINES
from zprof.model.plan import Assumption
from zprof.planner import framework_plan, plan, whatif

PAGE = Path(__file__).parents[3] / "docs/planner.md"
KNOWN: Mapping[str, Assumption] = {**plan.ASSUMPTIONS, **framework_plan.ASSUMPTIONS, **whatif.ASSUMPTIONS}
_PART = re.compile(r"(<!-- assumptions: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MACHINES = re.compile(r"(<!-- machines -->\n).*?(<!-- end -->)", re.DOTALL)
_PUBLISHED = re.compile(r"(<!-- published -->\n).*?(<!-- end -->)", re.DOTALL)
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


def written_machines() -> str:
    """The table of the machines."""
    head = (
        *("machine", "memory MiB", "memory GB/s", "fp32", "16 bit", "FP8", "FP4 Tflop/s", "matmul", "domain"),
        *("bus GB/s", "cards", "cards GB/s", "host GB/s", "source"),
    )
    lines = [head, ["---"] + ["--:"] * (len(head) - 2) + ["---"]]
    for name, each in MACHINES.items():
        links = (each.intra_bytes_per_s, each.node_bytes_per_s, each.host_bytes_per_s)
        memory, bus, cards, host = (f"{(rate or 0) / 1e9:,.4g}" for rate in (each.device_bytes_per_s, *links))
        peaks = (each.fp32_flops_per_s, each.flops_per_s, each.fp8_flops_per_s, each.fp4_flops_per_s)
        lines.append(
            (
                *(f"`{name}`", f"{each.memory_bytes / 2**20:,.0f}", memory),
                *("" if peak is None else f"{peak / 1e12:,.5g}" for peak in peaks),
                "" if each.matmul_ratio is None else f"{each.matmul_ratio:.0%}".replace("%", " %"),
                *(str(each.devices_per_node), bus, str(each.cards_per_node), cards, host, _cell(each.source)),
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page_now() -> str:
    page = _PART.sub(lambda found: f"{found[1]}{written(found[2])}{found[3]}", PAGE.read_text("utf-8"))
    page = _MACHINES.sub(lambda found: f"{found[1]}{written_machines()}{found[2]}", page)
    published = "".join(f"{line}\n" for line in list_table(list_outcomes("reported")[0]))
    return _PUBLISHED.sub(lambda found: f"{found[1]}{published}{found[2]}", page)


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
