"""Which limit counts, where limits are looked for, and what a file may not say."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.check_runs import BASE, MS, check_run
from zprof.base.errors import BadInput
from zprof.checks.config import (
    StatedLimit,
    adapt_to_device,
    default_limits,
    list_downgraded_gates,
    resolve_limits,
)
from zprof.model.comparison import Limit


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def by_gate(folder: Path, config: Path | None = None, **flags: str) -> dict[str, Limit]:
    stated = [
        StatedLimit(gate=gate, value=said, origin=f"--{gate}", location=f"--{gate}")
        for gate, said in flags.items()
    ]
    return {limit.gate: limit for limit in resolve_limits(folder, config=config, flags=stated)}


def test_each_layer_replaces_the_weaker_gate_by_gate(repository: Path) -> None:
    write(
        repository / "pyproject.toml",
        '[tool.zprof.check]\npeak_memory = "+1%"\nstep_time = "+9%"\ncollective_count = "+0%"\n',
    )
    write(repository / "zprof.toml", '[check]\nstep_time = {max = "+8%", confidence = 0.9}\n')
    held = by_gate(repository, collective_count="12")
    said = {gate: (limit.said, limit.origin) for gate, limit in held.items()}
    assert said["peak_memory"] == ("+1%", "pyproject.toml")
    assert said["step_time"] == ("+8% @0.9", "zprof.toml")
    assert said["collective_count"] == ("12", "--collective_count")
    assert said["collective_bytes"] == ("+0%", "default")


def test_off_removes_a_weaker_limit_and_a_stronger_one_restores_it(repository: Path) -> None:
    write(repository / "pyproject.toml", "[tool.zprof.check]\npeak_memory = false\nstep_time = 'off'\n")
    assert not {"peak_memory", "step_time"} & set(by_gate(repository))
    assert by_gate(repository, step_time="+1%")["step_time"].said == "+1%"
    assert "collective_bytes" not in by_gate(repository, collective_bytes="off")


TENANTS = {
    "nested": '[tool.zprof.check.peak_memory]\ntotal = "+1%"\nactivations = "+0%"\nuntagged = "1 MiB"\n',
    "dotted": '[tool.zprof.check]\npeak_memory.total = "+1%"\npeak_memory.activations = "+0%"\n'
    'peak_memory.untagged = "1 MiB"\n',
    "quoted": '[tool.zprof.check]\npeak_memory = "+1%"\n"peak_memory.activations" = "+0%"\n'
    '"peak_memory.untagged" = "1 MiB"\n',
    "inline": "[tool.zprof]\ncheck = "
    '{peak_memory = {max = "+1%", activations = "+0%", untagged = "1 MiB"}}\n',
}


@pytest.mark.parametrize("way", TENANTS)
def test_tenants_may_be_written_in_every_way_of_toml(repository: Path, way: str) -> None:
    write(repository / "pyproject.toml", TENANTS[way])
    held = by_gate(repository)
    memory = {gate: limit.said for gate, limit in held.items() if gate.startswith("peak")}
    assert memory == {
        "peak_memory": "+1%",
        "peak_memory.activations": "+0%",
        "peak_memory.untagged": "1 MiB",
    }


def test_the_nearest_file_with_limits_counts(repository: Path) -> None:
    write(repository / "pyproject.toml", '[tool.zprof.check]\npeak_memory = "+1%"\n')
    write(repository / "zprof.toml", '[check]\nstep_time = "+1%"\n')
    package = repository / "packages/model"
    write(package / "pyproject.toml", "[tool.ruff]\nline-length = 100\n")
    held = by_gate(package)
    assert (held["peak_memory"].said, held["step_time"].said) == ("+1%", "+1%")
    write(package / "pyproject.toml", '[tool.zprof.check]\npeak_memory = "+7%"\n')
    assert by_gate(package)["peak_memory"].said == "+7%"
    assert by_gate(repository)["peak_memory"].said == "+1%"


def test_nothing_above_the_repository_is_read(tmp_path: Path) -> None:
    write(tmp_path / "zprof.toml", '[check]\npeak_memory = "+9%"\n')
    inside = tmp_path / "repository/deep"
    inside.mkdir(parents=True)
    assert by_gate(inside)["peak_memory"].said == "+9%"
    write(tmp_path / "repository/.git", "gitdir: elsewhere\n")
    assert by_gate(inside)["peak_memory"].said == "+2%"


def test_a_named_file_replaces_those_around(repository: Path) -> None:
    write(repository / "zprof.toml", '[check]\npeak_memory = "+9%"\n')
    named = write(repository / "ci/limits.toml", '[check]\nstep_time = "+4%"\n')
    held = by_gate(repository, config=named)
    assert (held["peak_memory"].said, held["step_time"].origin) == ("+2%", "ci/limits.toml")
    project = write(repository / "ci/pyproject.toml", '[tool.zprof.check]\nstep_time = "+3%"\n')
    assert by_gate(repository, config=project)["step_time"].said == "+3%"
    write(project, "[project]\nname = 'x'\n")
    with pytest.raises(BadInput):
        by_gate(repository, config=project)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[check]\npeek_memory = '+2%'", "peak_memory"),
        ("[check]\npeak_memory = '+2'", "[check] peak_memory"),
        ("[check.peak_memory]\nactivation = '+2%'", "activations"),
        ("[check.peak_memory]\nactivations = '2'", "peak_memory.activations"),
        ("[check.peak_memory]\ntotal = '+2%'\nmax = '+3%'", "peak_memory"),
        ("[check]\npeak_memory.untagged = '1 B'\n'peak_memory.untagged' = '2 B'", "peak_memory.untagged"),
        ("[check]\npeak_memory = {}", "max"),
        ("[check]\nstep_time = 2026-01-01", "step_time"),
        ("[check]\n'a\\nb::error::' = 1", ""),
        ("peak_memory = '+2%'", "[check]"),
        ("[chekc]\npeak_memory = '+2%'", "chekc"),
        ("check = 3", "[check]"),
        ("[check]\npeak_memory = ", ""),
        ("[check]\npeak_memory = '1'\npeak_memory = '2'", ""),
        ("[check]\nx = " + "9" * 5000, ""),
        ("[check]\nx = " + "[" * 100_000, ""),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(repository: Path, text: str, named: str) -> None:
    write(repository / "zprof.toml", text)
    with pytest.raises(BadInput) as refused:
        by_gate(repository)
    line = f"{refused.value.message}; {refused.value.hint}"
    assert line.startswith(str(repository / "zprof.toml"))
    assert named in line
    assert line.isprintable()


def test_on_cpu_ranks_a_default_of_time_warns_and_one_of_shares_is_wider() -> None:
    held = {limit.gate: limit for limit in adapt_to_device(default_limits(), "cpu")}
    assert {gate for gate, limit in held.items() if limit.warns} == {"step_time", "exposed_wait"}
    assert held["overlap_ratio"].change_points == -0.20
    assert held["exposed_ratio"].change_points == 0.20
    assert adapt_to_device(default_limits(), "NVIDIA H200") == default_limits()


@pytest.mark.parametrize(("device", "outcome"), [("cpu", "warned"), ("NVIDIA H200", "failed")])
def test_only_what_would_have_failed_is_listed_as_softened(device: str, outcome: str) -> None:
    found = check_run(adapt_to_device(default_limits(), device), replace(BASE, wait=9 * MS, late=0.9))
    assert {result.limit.gate: result.outcome for result in found.results}["exposed_wait"] == outcome
    assert list_downgraded_gates(default_limits(), found) == (("exposed_wait",) if device == "cpu" else ())
