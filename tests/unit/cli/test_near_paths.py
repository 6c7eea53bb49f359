"""A path that does not exist: the nearest name in its folder is offered, whatever that name contains."""

from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.base.errors import suggest_path


@pytest.mark.parametrize(
    ("path", "offered"),
    [
        ("zero4.zprof", "zero3.zprof"),
        ("zero3", "zero3.zprof"),
        ("zero3.zpfor", "zero3.zprof"),
        ("trace.json", "trace.json.gz"),
        ("rusn/slow.zprof", "runs"),
        ("runs/slwo.zprof", "runs/slow.zprof"),
    ],
)
def test_the_nearest_name_is_offered(tmp_path: Path, path: str, offered: str) -> None:
    for name in ("zero3.zprof", "runs/slow.zprof"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "trace.json.gz").touch()
    assert str(tmp_path / offered) + "?" in suggest_path(tmp_path / path)


def test_what_is_not_similar_is_not_offered(tmp_path: Path) -> None:
    (tmp_path / "zero3.zprof").mkdir()
    for name in ("entirely-different", "", "x" * 300, "a\0b"):
        assert suggest_path(tmp_path / name / "below") == ""


def test_a_hostile_name_stays_on_its_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "zero3\x1b[2J\nzprof: fine.zprof").mkdir()
    code, out, err = call("diagnose", tmp_path / "zero3 [2J zprof: fine.zprof")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.removesuffix("\n").isprintable()
    assert "did you mean" in err
