"""The MCP server by the official client: the answer in three calls, bounded, and nothing beside it."""

import json
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from mcp import Client
from mcp.types import TextContent

from tests.support.hostile_names import NAMES
from tests.support.simulations import simulate_traces
from zprof.agents.server import make_server
from zprof.simulator.job import Job
from zprof.simulator.mesh.faults import plant_mesh_cause
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.mesh.truth import write_mesh_job
from zprof.simulator.ras import StuckJob, play_job, write_json

TOOLS = {"open", "diagnose", "compare", "hang", "query", "explain", "plan"}
MAX_ANSWER = 24_000
Call = tuple[str, dict[str, Any]]


def ask(root: Path, *calls: Call) -> list[tuple[bool, str]]:
    """Return whether each call failed, and its text."""

    async def talk() -> list[tuple[bool, str]]:
        async with Client(make_server(root)) as client:
            answers = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                assert isinstance(content, TextContent)
                answers.append((bool(result.is_error), content.text))
            return answers

    return anyio.run(talk)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for name, cause in (("healthy", None), ("slow", "straggler_rank")):
        write_mesh_job(plant(make_mesh_job(degrees=Degrees(data=4)), cause), folder / name)
    return folder


def plant(job: Job, cause: str | None) -> Job:
    return job if cause is None else plant_mesh_cause(job, cause, np.random.default_rng(5), 1.0)


def test_three_calls_tell_who_waits_for_whom_and_what_to_change(folder: Path) -> None:
    truth = json.loads((folder / "slow/truth.json").read_text())
    (culprit,) = truth["culprits"]["straggler_rank"]
    sql = (
        "select kind, last_rank, sum(exposed_wait_ns) as wait_ns from collectives where matched "
        "group by all order by wait_ns desc limit 1"
    )
    answers = ask(
        folder,
        ("open", {"path": "slow"}),
        ("diagnose", {"path": "slow"}),
        ("query", {"path": "slow", "sql": sql}),
    )
    assert not any(failed for failed, _ in answers)
    opened, diagnosed, asked = (json.loads(text) for _, text in answers)
    assert opened["world_size"] == 4
    (finding, *_) = diagnosed["findings"]["shown"]
    assert finding["cause"] == "straggler_rank"
    assert f"rank {culprit}" in finding["sentence"]
    assert finding["fix"]
    saving = finding["numbers"][0]
    assert saving["low"] <= truth["saving_ns"]["straggler_rank"] <= saving["value"]
    assert saving["path"] == ["findings[0].saving_ns[0]", "findings[0].saving_ns[1]"]
    wait = diagnosed["waits"]["shown"][0]
    assert (wait["late_rank"], wait["began_on_rank"]) == (culprit, culprit)
    assert asked["rows"][0][1] == culprit


def test_each_number_has_a_path_and_a_bound(folder: Path) -> None:
    ((_, text),) = ask(folder, ("diagnose", {"path": "slow"}))
    numbers = list(list_numbers(json.loads(text)))
    assert len(numbers) > 10
    for number in numbers:
        assert number["path"]
        assert number["bound"] in ("exact", "at_least", "at_most", "unknown")
        assert number["unit"]


def list_numbers(tree: Any) -> Any:
    if isinstance(tree, dict):
        if "value" in tree:
            yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from list_numbers(each)


def test_comparison_explanation_and_plan(folder: Path) -> None:
    answers = ask(
        folder,
        ("compare", {"a": "healthy", "b": "slow"}),
        ("diagnose", {"path": "slow", "baseline": "healthy"}),
        ("explain", {"finding": "straggler-rank"}),
        ("explain", {}),
        ("plan", {"preset": "llama-3-8b", "hardware": "h100", "world": 8}),
    )
    assert not any(failed for failed, _ in answers)
    compared, diagnosed, explained, causes, planned = (json.loads(text) for _, text in answers)
    assert any(change["what"] == "wall_ns" for change in compared["changes"]["shown"])
    assert diagnosed["findings"]["shown"][0]["cause"] == "straggler_rank"
    assert explained["id"] == "ZP301"
    assert any(cause["id"] == "ZP301" for cause in causes["causes"]["shown"])
    assert {scheme["fits"] for scheme in planned["schemes"]["shown"]} == {True, False}


@pytest.mark.parametrize(
    "call",
    [
        ("open", {"path": "/etc"}),
        ("open", {"path": "../.."}),
        ("open", {"path": "away"}),
        ("open", {"path": "nothing"}),
        ("open", {"path": "damaged"}),
        ("explain", {"finding": "ZP999"}),
        ("plan", {"preset": "no-such-model"}),
        ("query", {"path": "slow", "sql": "select * from read_text('/etc/passwd')"}),
        ("query", {"path": "slow", "sql": "drop view steps"}),
    ],
)
def test_an_error_is_one_line(folder: Path, call: Call) -> None:
    (folder / "damaged").mkdir(exist_ok=True)
    (folder / "damaged/rank0.json").write_text("{")
    if not (folder / "away").is_symlink():
        (folder / "away").symlink_to("/etc")
    ((failed, text),) = ask(folder, call)
    assert failed
    assert len(text.splitlines()) == 1
    assert "Traceback" not in text


def test_answers_are_bounded(tmp_path: Path) -> None:
    degrees = Degrees(pipeline=4, data=8, tensor=2)
    job = make_mesh_job(degrees=degrees, steps=2, micro_batches=2, stage_layers=1)
    simulate_traces(plant(job, "slow_stage"), tmp_path / "x")
    wide = "select repeat('x', 100000) as x from range(1000)"
    answers = ask(
        tmp_path,
        ("open", {"path": "x"}),
        ("diagnose", {"path": "x"}),
        ("hang", {"path": "x"}),
        ("query", {"path": "x", "sql": wide, "rows": 10**9}),
        ("query", {"path": "x", "sql": "select list(range) as x from range(100000)"}),
    )
    for failed, text in answers:
        assert not failed
        assert len(text) <= MAX_ANSWER


def test_a_hang_has_no_saving_and_commands_of_several_lines(tmp_path: Path) -> None:
    """A saving of 0 would say that the fix is not worth it."""
    job = StuckJob(8, stops={3: 5})
    (tmp_path / "x").mkdir()
    for time in ("2026-05-05 06:16:47", "2026-05-05 06:18:47"):
        (tmp_path / "x" / f"{time[-8:].replace(':', '')}.json").write_text(
            write_json(job, play_job(job), time)
        )
    ((failed, text),) = ask(tmp_path, ("hang", {"path": "x"}))
    assert not failed
    (finding,) = json.loads(text)["findings"]["shown"]
    assert finding["numbers"] == []
    assert "--pid 4003" in finding["fix"].splitlines()[0]
    assert "\\x" not in finding["fix"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_strangers_are_data(name: str, folder: Path) -> None:
    quoted = name.replace("'", "''").replace("\0", "")
    ((_, text),) = ask(folder, ("query", {"path": "slow", "sql": f"select '{quoted}' as x"}))
    assert all(character.isprintable() for character in text)


def test_tools_say_what_they_do(folder: Path) -> None:
    async def talk() -> None:
        async with Client(make_server(folder)) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            assert all(tool.description and tool.annotations for tool in tools)
            assert all(tool.annotations.read_only_hint for tool in tools if tool.annotations)

    anyio.run(talk)
