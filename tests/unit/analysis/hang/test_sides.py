"""What each side entered where two ranks differ, and who left the order, from dumps of two ranks."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from benchmarks.hangs import judge
from tests.support.flight_dumps import make_dump, make_entry
from tests.support.rule_runs import explain_hang
from zprof.model.collectives import CLOCK_GROUP
from zprof.model.hang import Hang, HangClass


class Call(Struct, frozen=True):
    """An operation of a program: the group, its kind, its elements, and its line."""

    group: str
    kind: str
    size: int
    line: int


A, B = Call("tensor", "all_reduce", 7, 10), Call("expert", "all_reduce", 9, 11)
GRADIENTS = Call("default_pg", "all_reduce", 64, 20)
ONE, TWO = Call("default_pg", "broadcast", 7, 30), Call("default_pg", "all_reduce", 9, 31)
PING = Call(CLOCK_GROUP, "broadcast", 1, 40)
GROUPS = ("default_pg", "tensor", "expert", CLOCK_GROUP)


def at_line(call: Call, line: int) -> Call:
    return Call(call.group, call.kind, call.size, line)


def write_dump(path: Path, calls: list[Call], pending: int) -> None:
    """Write the dump of a rank whose last calls are not finished."""
    counts: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        group = GROUPS.index(call.group)
        is_done = number < len(calls) - pending
        entries.append(
            make_entry(number, (group, str(group), call.group))
            | {
                "collective_seq_id": counts[call.group] + 1,
                "profiling_name": f"nccl:{call.kind}",
                "input_sizes": [[call.size]],
                "output_sizes": [[call.size]],
                "frames": [{"name": "step", "filename": "/job/train.py", "line": call.line}],
                "state": "completed" if is_done else "scheduled",
                "retired": is_done,
            }
        )
        counts[call.group] += 1
    config = {
        str(number): {"name": str(number), "desc": name, "ranks": "[0, 1]"}
        for number, name in enumerate(GROUPS)
    }
    path.write_bytes(pickle.dumps(make_dump(entries=entries, pg_config=config, pg_status={}), protocol=2))


def judge_programs(folder: Path, *programs: list[Call], pending: int = 1) -> Hang:
    for rank, calls in enumerate(programs):
        write_dump(folder / f"dump_{rank}", calls, pending)
    return judge(folder)


def test_both_sides_have_their_sizes_and_a_line_of_all_is_said_once(tmp_path: Path) -> None:
    larger = Call(ONE.group, ONE.kind, 8, ONE.line)
    hang = judge_programs(tmp_path, [*[ONE, TWO] * 3, ONE], [*[ONE, TWO] * 3, larger])
    assert hang.kind is HangClass.MISMATCHED
    assert [(side.ranks, side.sizes) for side in hang.sides] == [((0,), "[[7]]"), ((1,), "[[8]]")]
    sentence = explain_hang(hang).sentence
    assert "[[" not in sentence
    assert [sentence.count(part) for part in ("[7]", "[8]", "train.py:30")] == [1, 1, 1]


@pytest.mark.parametrize("entered", [1, 2])
def test_two_operations_of_a_group_in_another_order_are_no_skip(entered: int, tmp_path: Path) -> None:
    """Whether each rank has entered both, or stands in the first, at a line of its own."""
    turned = [at_line(TWO, 40), at_line(ONE, 41)]
    usual = [ONE, TWO, GRADIENTS] * 4
    hang = judge_programs(
        tmp_path, [*usual, *[ONE, TWO][:entered]], [*usual, *turned[:entered]], pending=entered
    )
    assert (hang.kind, hang.is_swapped) == (HangClass.DIFFERENT_COLLECTIVES, True)
    assert {side.ranks: side.location.line for side in hang.sides if side.location} == {(0,): 30, (1,): 40}


def test_two_groups_in_another_order_are_no_skip(tmp_path: Path) -> None:
    usual = [A, B, GRADIENTS] * 4
    hang = judge_programs(tmp_path, [*usual, A], [*usual, at_line(B, 12)])
    assert (hang.kind, [each.rank for each in hang.culprits]) == (HangClass.CIRCULAR_WAIT, [1])
    fix = explain_hang(hang).fix
    assert "train.py:10" in fix
    assert "train.py:12" in fix


def test_a_skip_is_one_with_the_comparison_of_clocks_between_its_rounds_too(tmp_path: Path) -> None:
    usual = [*[A, B, GRADIENTS] * 4, PING, PING, *[A, B, GRADIENTS] * 4]
    hang = judge_programs(tmp_path, [*usual, A], [*usual, B])
    assert (hang.kind, [each.rank for each in hang.culprits]) == (HangClass.NEVER_ENTERED, [1])
    turned = judge_programs(tmp_path, [*usual, A], [*usual, at_line(B, 12)])
    assert explain_hang(hang).fix != explain_hang(turned).fix
