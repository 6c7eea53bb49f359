"""What a number is made of is in the report, wherever its inputs stand."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from zprof.tui.figures import Unit, figure
from zprof.tui.meanings.meaning import Meaning, input_path, kind_of
from zprof.tui.meanings.registry import MEANINGS
from zprof.tui.popups.number import said_of
from zprof.tui.session import Loaded


def leaves_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves of a report with their paths; of a list the first."""
    if isinstance(tree, Mapping):
        for name, child in tree.items():
            yield from leaves_of(child, f"{path}.{name}" if path else name)
    elif isinstance(tree, list):
        for child in tree[:1]:
            yield from leaves_of(child, f"{path}[0]")
    else:
        yield path, tree


@pytest.mark.parametrize(
    "meaning", [one for one in MEANINGS.values() if one.inputs], ids=lambda one: one.leaf
)
def test_inputs_are_leaves_of_the_report(loaded: Loaded, meaning: Meaning) -> None:
    known = dict(leaves_of(loaded.tree))
    for leaf in (path for path in known if kind_of(path) == meaning.leaf):
        for name in meaning.inputs:
            path = input_path(leaf, name)
            assert path.replace("[*]", "[0]") in known, path


def test_a_tenant_is_said_with_the_peak_that_it_is_a_part_of(loaded: Loaded) -> None:
    for place, rank in enumerate(loaded.report.memory.per_rank):
        leaf = f"memory.per_rank[{place}].tenants.parameters"
        peak = figure(loaded.tree, Unit.BYTES, f"memory.per_rank[{place}].peak_bytes").text
        said = said_of(figure(loaded.tree, Unit.BYTES, leaf), loaded)
        assert [line.split() for line in said if "peak_bytes" in line] == [
            ["peak", *peak.split(), f"memory.per_rank[{place}].peak_bytes"]
        ]
        assert rank.peak_bytes
