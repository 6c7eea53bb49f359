"""The frozen answers: what changed is named, what did not is silent, and nothing leaves the copy unseen."""

from pathlib import Path

import pytest

from benchmarks.frozen.__main__ import compare
from benchmarks.frozen.changes import Change, list_changes
from benchmarks.frozen.copies import read_copy, read_digests, update_copies
from benchmarks.frozen.inputs import write_text
from benchmarks.frozen.run_case import Case, Documents, run_case

DOCUMENTS: Documents = {
    "report.json": {"time": {"per_rank": [{"wall_ns": 5, "ratio": 0.25}]}, "gaps": []},
    "report.txt": ["STEP", "rank 0 is late", "end"],
}


def change(**documents: object) -> Documents:
    return DOCUMENTS | {name.replace("_", "."): value for name, value in documents.items()}


def test_a_leaf_is_named_with_its_path_before_and_after() -> None:
    after = change(report_json={"time": {"per_rank": [{"wall_ns": 6, "ratio": 0.25}]}, "gaps": []})
    assert list_changes(DOCUMENTS, after) == [
        Change(document="report.json", path="time.per_rank[0].wall_ns", before="5", after="6")
    ]


def test_a_leaf_that_comes_or_goes_is_named() -> None:
    after = change(report_json={"time": {"per_rank": [{"wall_ns": 5}]}, "gaps": ["one"]})
    assert {(each.path, each.before, each.after) for each in list_changes(DOCUMENTS, after)} == {
        ("time.per_rank[0].ratio", "0.25", None),
        ("gaps", "[]", None),
        ("gaps[0]", None, '"one"'),
    }


def test_lines_are_named_and_a_line_that_only_moved_down_is_not() -> None:
    after = change(report_txt=["new", "STEP", "rank 1 is late", "end"])
    assert [(each.path, each.before, each.after) for each in list_changes(DOCUMENTS, after)] == [
        ("line 1", None, "new"),
        ("line 3", "rank 0 is late", "rank 1 is late"),
    ]


def test_a_float_that_only_rounds_differently_is_equal() -> None:
    after = change(report_json={"time": {"per_rank": [{"wall_ns": 5, "ratio": 0.2500000001}]}, "gaps": []})
    assert list_changes(DOCUMENTS, after) == []


def test_an_unchanged_tree_is_silent_and_a_missing_case_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_copies({"one": DOCUMENTS, "two": DOCUMENTS}, (), tmp_path)
    assert read_copy("one", tmp_path) == DOCUMENTS
    assert compare({"one": DOCUMENTS, "two": DOCUMENTS}, ("one", "two"), 9, tmp_path) == []
    assert compare({"one": DOCUMENTS}, ("one",), 9, tmp_path)[0].startswith("two:")
    new = compare(
        {"one": DOCUMENTS, "two": DOCUMENTS, "three": DOCUMENTS}, ("one", "two", "three"), 9, tmp_path
    )
    assert [line.split(":")[0] for line in new] == ["three"]


def test_an_update_writes_what_changed_and_removes_what_is_no_case(tmp_path: Path) -> None:
    update_copies({"one": DOCUMENTS, "two": DOCUMENTS, "three": DOCUMENTS}, (), tmp_path)
    written, removed = update_copies(
        {"one": DOCUMENTS, "two": change(report_txt=["STEP"])}, ("one", "two"), tmp_path
    )
    assert (written, removed) == (["two"], ["three"])
    assert set(read_digests(tmp_path)) == {"one", "two"}
    assert {path.name for path in tmp_path.glob("*.xz")} == {"one.json.xz", "two.json.xz"}


def test_a_case_has_its_files_exit_codes_and_no_path_of_this_machine() -> None:
    commands = ("plan --preset gpt2-1.5b --hardware ours.toml", "diagnose missing.zprof")
    case = Case(name="small", inputs=(write_text("ours.toml", 'base = "h100"\n'),), commands=commands)
    documents = run_case(case)
    assert set(documents) == {
        *(f"zprof {each}" for each in commands),
        "plan.json",
        "plan.txt",
        "plan.md",
        "plan.html",
    }
    assert documents["zprof diagnose missing.zprof"][0] == "exit code 2"
    assert "/zprof-frozen-" not in str(documents)
    assert documents == run_case(case)
