"""The rank of each file: what it states, else its name, else the order."""

from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.collectors.read.imports.file_ranks import rank_files, refuse_duplicate_ranks

#: Names in the order in which they are given; the rank of each, and whether the user is told of a guess.
BY_NAME = [
    ("rank3.json rank11.json.gz", [3, 11], False),
    ("RANK_2.pt.trace.json rank-0.json", [2, 0], False),
    ("worker3.json worker_4.json.zst", [3, 4], False),
    ("it_10_rank-0_memory.pickle", [0], False),
    ("rank0_memory_snapshot.pickle snapshot_rank_3.pickle", [0, 3], False),
    ("gpu-node07_worker-7f3_rank2.pickle gpu-node07_worker-7f3_rank1.pickle", [2, 1], False),
    ("local_rank0_rank8.pickle local_rank1_rank9.pickle", [8, 9], False),
    ("gpu1_Nov_25_02_21_28.pickle gpu2_Nov_25_02_21_31.pickle", [0, 1], True),
    ("one.json", [0], False),
    ("snap_3.pickle snap_1.pkl", [3, 1], True),
    ("rank1/trace.json rank0/trace.json", [1, 0], True),
    ("rank7/b.json rank7/a.json", [0, 1], True),
    ("b.json a.json", [0, 1], True),
    ("x_1.json y_1.json", [0, 1], True),
    ("node_1234.1700000000000.pt.trace.json node_99.1700000000001.pt.trace.json", [0, 1], True),
]
STATED = [
    ("rank0.json rank1.json", [1, 0], [1, 0], True),
    ("rank0.json", [0], [0], False),
    ("a.json rank5.json", [3, None], [3, 5], True),
    ("a.json b.json c.json", [1, None, None], [1, 0, 2], True),
    ("a.json x_1.json y_2.json", [1, None, None], [1, 0, 2], True),
    ("rank4.json", [-1], [4], False),
    ("rank4.json", [1 << 20], [4], False),
    ("rank4.json", [1 << 70], [4], False),
]


@pytest.mark.parametrize(
    ("names", "stated", "ranks", "noted"),
    [*((names, [], ranks, noted) for names, ranks, noted in BY_NAME), *STATED],
)
def test_what_a_file_states_goes_before_its_name_and_its_name_before_the_order(
    names: str, stated: list[int | None], ranks: list[int], noted: bool
) -> None:
    paths = [Path(name) for name in names.split()]
    found = rank_files(paths, stated)
    by_path = {file.path: file.rank for file in found.files}
    assert [by_path[path] for path in paths] == ranks
    assert [file.rank for file in found.files] == sorted(ranks)
    assert bool(found.notes) == noted


def test_notes_name_files_and_steer_no_terminal() -> None:
    (note,) = rank_files([Path("\x1b[31m.json"), Path("[bold]b.json")]).notes
    assert "\x1b" not in note
    assert "\\x1b[31m.json is rank 0" in note


@pytest.mark.parametrize(
    ("names", "ranks", "words"),
    [
        (["it1_rank0.json", "it2_rank0.json"], [], r"it1_rank0.json and it2_rank0.json: .* rank 0(?m:$)"),
        (["h_7.1700000000000.pt.trace.json", "h_7.1700000009999.pt.trace.json"], [0, 0], "different times"),
    ],
)
def test_two_files_of_one_rank_are_refused(names: list[str], ranks: list[int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        refuse_duplicate_ranks(rank_files([Path(name) for name in names], ranks).files)
