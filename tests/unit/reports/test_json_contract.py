"""The JSON contract ``zprof.report/1``: every leaf is there, with its type, and text shows the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.memories import HOSTILE
from tests.support.reports import SITUATIONS, slower, straggler
from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.report import Report
from zprof.reports.formats import by_name

#: Leaves of the contract: ``[]`` is any element.
_CONTRACT = """
schema zprof_version verdict.status verdict.sentence
run.name run.source run.world_size run.ranks_loaded[] run.steps[] run.device run.backend run.engine run.stage
time.per_rank[].rank time.per_rank[].steps time.per_rank[].wall_ns time.per_rank[].compute_ns
time.per_rank[].overlapped_ns time.per_rank[].exposed_wait_ns time.per_rank[].exposed_transfer_ns
time.per_rank[].exposed_memcpy_ns time.per_rank[].idle_ns time.per_rank[].unexplained_ns
time.per_rank[].wall_median_ns time.per_rank[].collective_ns time.per_rank[].overlap_ratio
time.collectives[].kind time.collectives[].group time.collectives[].dtype time.collectives[].count
time.collectives[].bytes time.collectives[].total_ns time.collectives[].exposed_ns
time.collectives[].wait_ns time.collectives[].transfer_ns time.collectives[].launch_delay_ns
time.collectives[].algbw_bytes_per_s time.collectives[].busbw_bytes_per_s time.collectives[].method
time.alignment.method time.alignment.offsets_ns.0 time.alignment.offsets_ns.1
time.alignment.uncertainty_ns time.alignment.matched time.alignment.unmatched
memory.per_rank[].rank memory.per_rank[].device memory.per_rank[].peak_bytes memory.per_rank[].peak_step
memory.per_rank[].peak_phase memory.per_rank[].untagged_bytes memory.per_rank[].reserved_unused_bytes
memory.per_rank[].non_pytorch_bytes memory.per_rank[].tenants.parameters memory.per_rank[].tenants.gradients
memory.per_rank[].tenants.optimizer_state memory.per_rank[].tenants.activations
memory.per_rank[].tenants.temporary_buffers memory.per_rank[].tenants.communication_buffers
memory.per_rank[].formula.parameters memory.per_rank[].formula.gradients
memory.per_rank[].formula.optimizer_state
memory.top[].rank memory.top[].bytes memory.top[].tenant memory.top[].sub memory.top[].module
memory.top[].stack
volume.expected_bytes volume.seen_bytes volume.ratio
comparison.baseline comparison.ledger_delta.compute_ns comparison.ledger_delta.exposed_wait_ns
comparison.ledger_delta.exposed_transfer_ns comparison.ledger_delta.exposed_memcpy_ns
comparison.ledger_delta.idle_ns comparison.ledger_delta.unexplained_ns
comparison.memory_delta.parameters comparison.memory_delta.communication_buffers
comparison.step_time.a_ns comparison.step_time.b_ns comparison.step_time.ci95[]
findings[].id findings[].cause findings[].severity findings[].sentence findings[].evidence[].what
findings[].evidence[].value findings[].saving_ns[] findings[].confidence findings[].fix
findings[].disprove findings[].doc
gaps[].what gaps[].rank gaps[].reason gaps[].remedy
"""
LEAVES = _CONTRACT.split()


def tree_of(report: Report) -> Any:
    return json.loads(by_name("json").render(report))


def at(tree: Any, path: str) -> list[Any]:
    """The values at a path; KeyError where a leaf is missing."""
    values = [tree]
    for part in path.split("."):
        name = part.removesuffix("[]")
        values = [value[name] for value in values]
        if part.endswith("[]"):
            values = [item for value in values for item in value]
    return values


@pytest.mark.parametrize("path", LEAVES)
def test_leaf_is_there(path: str) -> None:
    assert at(tree_of(slower()), path), f"{path}: no value"


def test_schema_and_enums() -> None:
    tree = tree_of(slower())
    assert tree["schema"] == "zprof.report/1"
    assert tree["verdict"]["status"] == "slower"
    assert tree["findings"][0]["cause"] == "no_prefetch"
    assert tree["findings"][0]["confidence"] == "high"


@pytest.mark.parametrize("name", SITUATIONS)
def test_units_are_integers_and_ratios_are_ratios(name: str) -> None:
    for path, value in walk(tree_of(SITUATIONS[name]())):
        if value is None or "evidence" in path:
            continue
        if path.endswith("_ns") or path.endswith("_bytes"):
            assert isinstance(value, int), path
        if path.endswith("overlap_ratio"):
            assert 0 <= value <= 1, path


def test_unknown_is_null() -> None:
    tree = tree_of(SITUATIONS["nothing_timed"]())
    assert tree["comparison"] is None
    assert tree["time"]["alignment"] is None
    assert tree_of(slower())["memory"]["per_rank"][0]["non_pytorch_bytes"] is None


def test_the_same_report_gives_the_same_text_twice() -> None:
    assert by_name("json").render(slower()) == by_name("json").render(slower())


def test_hostile_names_are_ascii() -> None:
    document = by_name("json").render(straggler(module=HOSTILE, name=HOSTILE))
    assert document.isascii()
    assert not any(ord(c) < 32 and c != "\n" for c in document)
    assert json.loads(document)["run"]["name"] == HOSTILE


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for value in tree:
            yield from walk(value, f"{path}[]")
    else:
        yield path, tree


#: How the text report shows a leaf.
SHOWN = {
    "verdict.sentence": str,
    "run.name": str,
    "run.backend": str,
    "run.engine": str,
    "run.modelled[]": str,
    **{f"time.per_rank[].{term}_ns": format_ms for term in (
        "wall", "compute", "exposed_wait", "exposed_transfer", "exposed_memcpy", "idle", "unexplained")},
    "time.per_rank[].overlap_ratio": format_percent,
    "time.collectives[].kind": str,
    "time.collectives[].bytes": format_bytes,
    **{f"time.collectives[].{term}_ns": format_ms for term in ("total", "exposed", "wait", "transfer")},
    "time.collectives[].busbw_bytes_per_s": format_rate,
    "time.alignment.uncertainty_ns": format_ns,
    "time.alignment.matched": str,
    **{f"memory.per_rank[].{leaf}": format_bytes for leaf in ("peak_bytes", "untagged_bytes")},
    **{f"memory.per_rank[].tenants.{name}": format_bytes for name in (
        "parameters", "gradients", "optimizer_state", "activations", "temporary_buffers",
        "communication_buffers")},
    "memory.per_rank[].peak_phase": str,
    "memory.top[].bytes": format_bytes,
    "memory.top[].module": str,
    "volume.expected_bytes": format_bytes,
    "volume.seen_bytes": format_bytes,
    "volume.ratio": format_percent,
    "comparison.baseline": str,
    "comparison.step_time.a_ns": format_ms,
    "comparison.step_time.b_ns": format_ms,
    "findings[].id": str,
    "findings[].cause": str,
    "findings[].sentence": str,
    "findings[].saving_ns[]": format_ns,
    "findings[].confidence": str,
    "findings[].evidence[].what": str,
    "findings[].disprove": str,
    "findings[].doc": str,
    "gaps[].what": str,
    "gaps[].reason": str,
    "gaps[].remedy": str,
}  # fmt: skip


@pytest.mark.parametrize("name", ["slower", "straggler", "rank_missing"])
def test_text_shows_the_same_leaves(name: str) -> None:
    report = SITUATIONS[name]()
    shown = " ".join(by_name("text").render(report).split())
    for path, value in walk(tree_of(report)):
        if path in SHOWN and value is not None:
            assert " ".join(SHOWN[path](value).split()) in shown, f"{path} = {value}"


def test_every_shown_path_exists() -> None:
    paths = {path for name in SITUATIONS for path, _ in walk(tree_of(SITUATIONS[name]()))}
    assert set(SHOWN) <= paths
