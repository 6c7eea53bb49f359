"""Which rank a file is of."""

from pathlib import Path

import pytest

from zprof.integrations.imports.file_ranks import rank_files, refuse_duplicate_ranks
from zprof.model.errors import BadInput

DISCOVERED = {
    "rank3.json rank11.json.gz": {3: "rank3.json", 11: "rank11.json.gz"},
    "RANK_2.pt.trace.json rank-0.json": {2: "RANK_2.pt.trace.json", 0: "rank-0.json"},
    "rank3_trace.json rank4_trace.json": {3: "rank3_trace.json", 4: "rank4_trace.json"},
    "worker3.json worker_4.json.zst": {3: "worker3.json", 4: "worker_4.json.zst"},
    "it_10_rank-0_memory.pickle": {0: "it_10_rank-0_memory.pickle"},
    "snap_3.pickle snap_1.pkl": {3: "snap_3.pickle", 1: "snap_1.pkl"},
    "trace_3.json trace_1.json.gz": {3: "trace_3.json", 1: "trace_1.json.gz"},
    "b.json a.json": {0: "b.json", 1: "a.json"},
    "x_1.json y_1.json": {0: "x_1.json", 1: "y_1.json"},
    "node_1234.1700000000000.pt.trace.json node_99.1700000000001.pt.trace.json": {
        0: "node_1234.1700000000000.pt.trace.json",
        1: "node_99.1700000000001.pt.trace.json",
    },
}


@pytest.mark.parametrize("names", DISCOVERED)
def test_the_name_says_the_rank_else_the_order(names: str) -> None:
    found = rank_files([Path(name) for name in names.split()])
    assert {file.rank: file.path.name for file in found.files} == DISCOVERED[names]


def test_what_a_file_states_wins_and_the_contradiction_is_said() -> None:
    found = rank_files([Path("rank0.json"), Path("rank1.json")], [1, 0])
    assert [(file.rank, file.path.name) for file in found.files] == [(0, "rank1.json"), (1, "rank0.json")]
    assert "names of 2 files say another rank" in found.notes[0]
    assert rank_files([Path("rank0.json")], [0]).notes == ()


def test_a_silent_file_goes_by_its_name_and_then_where_there_is_room() -> None:
    named = rank_files([Path("a.json"), Path("rank5.json")], [3, None])
    assert [file.rank for file in named.files] == [3, 5]
    assert "1 of 2 files do not say their rank" in named.notes[0]
    by_order = rank_files([Path("a.json"), Path("b.json"), Path("c.json")], [1, None, None])
    assert {file.path.name: file.rank for file in by_order.files} == {"a.json": 1, "b.json": 0, "c.json": 2}
    assert "so the order does" in by_order.notes[1]
    taken = rank_files([Path("a.json"), Path("x_1.json"), Path("y_2.json")], [1, None, None])
    assert {file.path.name: file.rank for file in taken.files} == {"a.json": 1, "x_1.json": 0, "y_2.json": 2}


def test_the_folder_may_say_the_rank() -> None:
    found = rank_files([Path("rank1/trace.json"), Path("rank0/trace.json")])
    assert [(file.rank, str(file.path)) for file in found.files] == [
        (0, "rank0/trace.json"),
        (1, "rank1/trace.json"),
    ]
    assert "the number of the folder is taken" in found.notes[0]
    assert [file.rank for file in rank_files([Path("rank7/b.json"), Path("rank7/a.json")]).files] == [0, 1]


@pytest.mark.parametrize("rank", [-1, 1 << 20, 1 << 70])
def test_an_impossible_rank_is_not_believed(rank: int) -> None:
    assert [file.rank for file in rank_files([Path("rank4.json")], [rank]).files] == [4]


def test_one_file_needs_no_note() -> None:
    assert rank_files([Path("one.json")]).notes == ()
    guessed = rank_files([Path("b.json"), Path("a.json")]).notes
    assert "b.json is rank 0, a.json is rank 1" in guessed[0]


def test_two_files_of_one_rank_are_refused() -> None:
    with pytest.raises(BadInput, match=r"it1_rank0.json and it2_rank0.json: both are of rank 0$"):
        refuse_duplicate_ranks(rank_files([Path("it1_rank0.json"), Path("it2_rank0.json")]).files)
    two_times = [Path("h_7.1700000000000.pt.trace.json"), Path("h_7.1700000009999.pt.trace.json")]
    with pytest.raises(BadInput, match="recorded at two times"):
        refuse_duplicate_ranks(rank_files(two_times, [0, 0]).files)


def test_names_that_steer_a_terminal_are_escaped_in_notes() -> None:
    note = rank_files([Path("\x1b[31m.json"), Path("[bold]b.json")]).notes[0]
    assert "\x1b" not in note
    assert "\\x1b[31m.json" in note
