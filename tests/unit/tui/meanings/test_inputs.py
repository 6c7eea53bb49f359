"""What a number is made of is in the report, wherever its inputs stand."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from zprof.tui.figures import Unit, figure
from zprof.tui.metric_help.metric import MetricHelp, resolve_input, strip_indices
from zprof.tui.metric_help.registry import METRIC_HELP
from zprof.tui.number_popup import explain_number
from zprof.tui.session import LoadedRun


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
    "meaning", [one for one in METRIC_HELP.values() if one.inputs], ids=lambda one: one.leaf
)
def test_inputs_are_leaves_of_the_report(loaded: LoadedRun, meaning: MetricHelp) -> None:
    known = dict(leaves_of(loaded.tree))
    for leaf in (path for path in known if strip_indices(path) == meaning.leaf):
        for name in meaning.inputs:
            path = resolve_input(leaf, name)
            assert path.replace("[*]", "[0]") in known, path


def test_a_tenant_is_said_with_the_peak_that_it_is_a_part_of(loaded: LoadedRun) -> None:
    for place, rank in enumerate(loaded.report.memory.per_rank):
        leaf = f"memory.per_rank[{place}].tenants.parameters"
        peak = figure(loaded.tree, Unit.BYTES, f"memory.per_rank[{place}].peak_bytes").text
        said = explain_number(figure(loaded.tree, Unit.BYTES, leaf), loaded)
        assert [line.split() for line in said if "peak_bytes" in line] == [
            ["peak", *peak.split(), f"memory.per_rank[{place}].peak_bytes"]
        ]
        assert rank.peak_bytes
