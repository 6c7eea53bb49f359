"""HTA's answers as leaves of the report, and its failures as gaps."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.reports import memory_only, trace
from zprof.collectors.read.imports.cache import write_origin
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.integrations.hta import verification as opinion
from zprof.integrations.hta.process import HtaAnswers, read_answers
from zprof.integrations.hta.verification import add_second_opinion, ask_second_opinion
from zprof.model.report import StreamIdle
from zprof.reports.formats import by_name

IDLE = [{"stream": 7, "host_wait_ns": 3_000_000, "kernel_wait_ns": 500_000, "other_ns": 0}]
CRITICAL = {"steps": 2, "steps_seen": 3, "length_ns": 9_000_000, "shares": {"cpu_bound": 0.75, "new": 0.25}}
GOOD = {"version": "0.5.0", "rows": None, "idle": IDLE, "critical": CRITICAL}


def said(*, errors: dict[str, str] | None = None, device: int = 9, **values) -> HtaAnswers:
    rows = {"device": device, "kept": device, "resolution_ns": 1.0, "names": []}
    lines = [{"what": name, "value": value} for name, value in (GOOD | {"rows": rows} | values).items()]
    lines += [{"what": name, "error": error} for name, error in (errors or {}).items()]
    return read_answers([json.dumps(line).encode() for line in lines])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[int, HtaAnswers]:
    """What HTA will say of each rank."""
    told: dict[int, HtaAnswers] = {}
    monkeypatch.setattr(opinion, "ask_all", lambda files, *_: {rank: told[rank] for rank in files})
    return told


def test_each_rank_has_its_critical_path_and_idle_streams(answers):
    answers |= {1: said(), 0: said(critical=CRITICAL | {"steps": 0, "steps_seen": 0})}
    found, gaps = ask_second_opinion({1: Path("b"), 0: Path("a")})
    assert gaps == []
    assert found.source == "HTA 0.5.0"
    assert [rank.rank for rank in found.per_rank] == [0, 1]
    assert [rank.critical_path.window for rank in found.per_rank] == ["entire trace", "2 of 3 steps"]
    assert found.per_rank[1].critical_path.shares == {"cpu_bound": 0.75, "new": 0.25}
    assert found.per_rank[1].idle == (
        StreamIdle(stream=7, host_wait_ns=3_000_000, kernel_wait_ns=500_000, other_ns=0),
    )


def test_failures_are_gaps_and_the_rest_stays(answers):
    answers |= {
        0: said(errors={"critical": "AssertionError: Could not find runtime"}),
        1: said(device=0),
        2: said(errors={"load": "KeyError: 'x'"}, rows=3, idle=3, critical=3),
    }
    found, gaps = ask_second_opinion(dict.fromkeys(range(3), Path("x")))
    (rank,) = found.per_rank
    assert (rank.rank, rank.critical_path, len(rank.idle)) == (0, None, 1)
    assert [(gap.rank, gap.what) for gap in gaps] == [
        (0, "HTA (critical)"), (1, "HTA"), (2, "HTA (idle, critical)"),
    ]  # fmt: skip
    assert "KeyError" in gaps[2].reason
    assert ask_second_opinion({1: Path("a")})[0] is None


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    cache = tmp_path / ".x.zprof-cache"
    cache.mkdir()
    write_origin(cache, [RankedFile(rank=rank, path=tmp_path / f"{rank}.json") for rank in range(64)])
    return cache / "x.zprof"


def test_a_report_of_a_trace_has_it_as_leaves_that_steer_no_terminal(answers, imported):
    report = trace()
    evil = CRITICAL | {"shares": {"\x1b[31m\n": 1.0, "cpu_bound": 0.75}}
    answers |= {rank: said(version="9\x1b[2J\n9", critical=evil) for rank in report.run.ranks_loaded}
    found = add_second_opinion(report, imported)
    assert replace(found, second_opinion=None) == report
    tree = json.loads(by_name("json").render(found))["second_opinion"]
    assert tree["per_rank"][0]["critical_path"]["shares"]["cpu_bound"] == 0.75
    assert tree["per_rank"][0]["idle"][0]["host_wait_ns"] == 3_000_000
    for name in ("text", "json"):
        assert "\x1b" not in by_name(name).render(found)


@pytest.mark.parametrize("report", [trace(), memory_only()], ids=["trace", "recording"])
def test_without_a_trace_at_hand_it_is_one_gap(report, tmp_path, imported):
    run = tmp_path / "run.zprof" if report.run.source == "trace" else imported
    found = add_second_opinion(report, run)
    assert found.second_opinion is None
    (gap,) = found.gaps[len(report.gaps) :]
    assert (gap.what, gap.rank) == ("HTA", None)
