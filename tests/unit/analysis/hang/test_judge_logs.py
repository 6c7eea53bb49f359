"""What logs alone prove: who stands where, who is late, and what cannot be told."""

import json
import pickle
from pathlib import Path

import pytest

from benchmarks.hang_jobs.log_cuts import CUTS
from benchmarks.hang_logs import Case, judge_case
from tests.support.flight_dumps import make_dump, make_entry
from tests.support.hang_lines import ENDING, write_counters, write_default, write_signal, write_timeout
from tests.support.real_traces import LOGS
from zprof.analysis.hang.find_hang import find_hang
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangClass, MemberState
from zprof.run.reader import Run

GATHER = {"kind": "_ALLGATHER_BASE", "inputs": 8, "outputs": 32}


def judge(folder: Path, *texts: str) -> Hang:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.log")
        paths[-1].write_text(text)
    return judge_paths(paths, folder)


def judge_paths(paths: list[Path], folder: Path) -> Hang:
    hang = find_hang(Run(import_paths(paths, folder / "run.zprof", force=True).run))
    assert hang is not None
    return hang


def states(hang: Hang, group: str = "0") -> dict[int | None, str]:
    return {each.rank: each.state.value for each in hang.ranks if each.group == group}


def culprits(hang: Hang) -> list[int]:
    return [each.rank for each in hang.culprits]


def test_all_is_said_only_if_a_line_states_how_many_there_are(tmp_path: Path) -> None:
    gathers = "".join(write_default(rank, 70, **GATHER) for rank in range(4))
    hang = judge(tmp_path, gathers)
    assert (hang.kind, culprits(hang), hang.operations[0].size) == (HangClass.NOT_FINISHED, [], 4)
    reduces = "".join(write_default(rank, 70) for rank in range(4))
    hang = judge(tmp_path, reduces)
    assert (hang.kind, hang.confidence) == (HangClass.CANNOT_TELL, Confidence.LOW)
    assert states(hang) == dict.fromkeys(range(4), "entered")


def test_a_rank_is_late_by_its_own_line(tmp_path: Path) -> None:
    hang = judge(
        tmp_path, "".join(write_default(rank, 212) for rank in (0, 1, 2)) + write_signal(3, 0, 211, 211)
    )
    assert (hang.kind, culprits(hang), hang.confidence) == (HangClass.HOST_STUCK, [3], Confidence.MEDIUM)
    assert states(hang) == {0: "entered", 1: "entered", 2: "entered", 3: "not_entered"}
    assert hang.victims == (0, 1, 2)


def test_if_most_are_late_nobody_is_accused(tmp_path: Path) -> None:
    late = "".join(write_signal(rank, 0, 211, 211) for rank in (1, 2, 3))
    assert judge(tmp_path, write_default(0, 212) + late).confidence is Confidence.LOW


def test_a_late_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """Rank 1 stands in its tensor group: it holds nobody up by itself."""
    text = write_default(0, 30) + write_signal(1, 0, 29, 29) + write_signal(2, 0, 29, 29)
    text += write_timeout(1, 7, kind="_ALLGATHER_BASE", inputs=8, outputs=16)
    text += write_counters(1, 7, 7, 6, inner=0)
    hang = judge(tmp_path, text)
    assert (culprits(hang), hang.confidence) == ([2], Confidence.LOW)
    assert 1 in hang.victims


def test_a_silent_rank_is_named_and_not_accused(tmp_path: Path) -> None:
    hang = judge(tmp_path, "".join(write_default(rank, 1, **GATHER) for rank in (0, 1, 3)))
    assert (hang.kind, culprits(hang), hang.confidence) == (HangClass.RANK_MISSING, [2], Confidence.LOW)
    assert states(hang)[2] == "silent"
    assert hang.ranks_missing == (2,)


def test_silent_members_of_a_group_have_no_names(tmp_path: Path) -> None:
    text = "".join(
        write_timeout(rank, 88, inner=place, **GATHER) + write_counters(rank, 88, 90, 87, inner=place)
        for place, rank in ((0, 4), (1, 5), (3, 7))
    )
    hang = judge(tmp_path, text)
    assert (hang.kind, culprits(hang)) == (HangClass.RANK_MISSING, [])
    assert (hang.operations[0].size, hang.operations[0].unnamed) == (4, 1)


def test_the_fewer_ranks_in_another_operation_are_odd(tmp_path: Path) -> None:
    text = "".join(write_default(rank, 9) for rank in (0, 1, 3))
    hang = judge(tmp_path, text + write_default(2, 9, kind="BROADCAST", inputs=77, outputs=77))
    assert (hang.kind, culprits(hang)) == (HangClass.DIFFERENT_COLLECTIVES, [2])
    assert hang.culprits[0].entered_instead == "broadcast [77]"
    hang = judge(tmp_path, text + write_default(2, 9, inputs=65, outputs=65))
    assert (hang.kind, culprits(hang)) == (HangClass.MISMATCHED, [2])
    uneven = "".join(write_default(rank, 9, kind="ALLTOALL_BASE", inputs=8 + rank) for rank in range(4))
    assert judge(tmp_path, uneven).kind is HangClass.CANNOT_TELL


def test_one_of_two_is_not_odd(tmp_path: Path) -> None:
    hang = judge(tmp_path, write_default(0, 9) + write_default(1, 9, kind="BROADCAST"))
    assert (hang.kind, culprits(hang)) == (HangClass.DIFFERENT_COLLECTIVES, [0, 1])
    assert hang.confidence is Confidence.LOW


def test_no_device_is_blamed_where_several_stand_behind(tmp_path: Path) -> None:
    behind = "".join(write_default(rank, 900, 905, **GATHER) for rank in (0, 3))
    past = "".join(write_default(rank, 902, **GATHER) for rank in (1, 2))
    hang = judge(tmp_path, behind + past)
    assert (hang.kind, culprits(hang)) == (HangClass.DIFFERENT_COLLECTIVES, [])
    assert states(hang) == {0: "entered", 1: "past", 2: "past", 3: "entered"}


def test_numbers_of_sends_are_not_compared(tmp_path: Path) -> None:
    text = "".join(
        write_timeout(rank, seq, kind="COALESCED", inputs=0, outputs=0)
        + write_counters(rank, seq, seq, seq - 1)
        for rank, seq in ((0, 5), (1, 9))
    )
    hang = judge(tmp_path, text)
    assert (hang.kind, states(hang, "37")) == (HangClass.CANNOT_TELL, {0: "entered", 1: "entered"})


@pytest.mark.parametrize(
    ("code", "named"), [(-9, Confidence.MEDIUM), (-11, Confidence.MEDIUM), (1, Confidence.LOW), (-6, None)]
)
def test_a_rank_that_ended_by_itself_is_named(code: int, named: Confidence | None, tmp_path: Path) -> None:
    text = write_default(0, 9) + write_default(1, 9) + ENDING.format(rank=2, local=2, code=code)
    hang = judge(tmp_path, text)
    assert (hang.confidence if culprits(hang) == [2] else None) == named
    assert (hang.kind is HangClass.RANK_MISSING) is (named is not None)


def test_lines_beside_dumps_are_of_the_ranks_without_one(tmp_path: Path) -> None:
    """Three dumps stand in #3; the log of the fourth rank says that #2 was its last."""
    for rank in range(3):
        counts = {"last_enqueued_collective": 3, "last_completed_collective": 2}
        dump = make_dump(ranks=range(4), entries=[make_entry(2)], pg_status={"0": counts})
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    dumps = [tmp_path / f"dump_{rank}" for rank in range(3)]
    hang = judge_paths(dumps, tmp_path)
    assert (hang.kind, culprits(hang)) == (HangClass.RANK_MISSING, [3])
    log = tmp_path / "rank3.log"
    log.write_text(write_signal(3, 0, 2, 2))
    hang = judge_paths([*dumps, log], tmp_path)
    assert (hang.kind, culprits(hang), hang.ranks_missing) == (HangClass.HOST_STUCK, [3], ())


def test_what_is_missing_is_a_gap_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(write_default(1, 77))
    report = diagnose(Run(import_paths([tmp_path / "one.log"], tmp_path / "run.zprof").run))
    assert [finding.cause for finding in report.findings] == ["hang_not_told"]
    (gap,) = [gap for gap in report.gaps if gap.what == "ranks of the stuck group"]
    assert "--log-dir" in gap.remedy


@pytest.mark.parametrize("cut", CUTS)
def test_generated_logs(cut: str) -> None:
    for seed in (70_001, 70_012, 70_023):
        verdict = judge_case(Case(seed, (cut,)))
        assert (verdict.error, verdict.wrong_states, verdict.accused) == ("", (), ())
        assert verdict.is_cause_right or not verdict.truth.decides
        assert not verdict.is_unproved


EXPECTED: dict[str, tuple[HangClass, list[int]]] = {
    "late_rank.log": (HangClass.HOST_STUCK, [5]),
    "torchrun_logs": (HangClass.HOST_STUCK, [5]),
    "late_rank_of_a_group.log": (HangClass.RANK_MISSING, []),
    "mismatch.log": (HangClass.DIFFERENT_COLLECTIVES, [2]),
    "wrapped_by_a_terminal.log": (HangClass.DIFFERENT_COLLECTIVES, [2]),
    "ranks_apart.log": (HangClass.DIFFERENT_COLLECTIVES, []),
    "two_behind_three_past.log": (HangClass.DIFFERENT_COLLECTIVES, []),
    "two_of_unknown_many.log": (HangClass.CANNOT_TELL, []),
    "first_collective.log": (HangClass.RANK_MISSING, [7]),
    "two_groups.log": (HangClass.CANNOT_TELL, []),
    "states_only.log": (HangClass.CANNOT_TELL, []),
    "signals_only.log": (HangClass.HOST_STUCK, [5]),
    "one_line.log": (HangClass.RANK_MISSING, [0, 1, 2, 4, 5, 6, 7]),
    "nccl_debug_info.log": (HangClass.DIFFERENT_COLLECTIVES, [3]),
    "all_entered.log": (HangClass.NOT_FINISHED, []),
}


@pytest.mark.skipif(not LOGS.is_dir(), reason="the logs are not beside the checkout")
@pytest.mark.parametrize("name", EXPECTED)
def test_logs_with_a_known_truth(name: str, tmp_path: Path) -> None:
    truth = json.loads((LOGS / "truth.json").read_text())[f"{name}/" if name == "torchrun_logs" else name]
    truth = json.loads((LOGS / "truth.json").read_text()).get(truth.get("same_as"), truth)
    hang = judge_paths([LOGS / name], tmp_path)
    assert (hang.kind, culprits(hang)) == EXPECTED[name]
    if truth.get("accuse") == []:
        assert hang.confidence is Confidence.LOW or not hang.culprits
    for key, state in (("entered", MemberState.ENTERED), ("not_entered", MemberState.NOT_ENTERED)):
        if key in truth:
            said = sorted(each.rank for each in hang.ranks if each.state is state and each.rank is not None)
            assert said == truth[key]
