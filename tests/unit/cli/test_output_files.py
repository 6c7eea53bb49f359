"""``-o``: the suffix chooses the format, a file that is there stays without ``--force``."""

from pathlib import Path

import pytest

from tests.support.command_calls import Call

pytestmark = pytest.mark.usefixtures("diagnosed_once")


@pytest.mark.parametrize(
    ("line", "suffix", "start"),
    [
        ("report RUNS/good.zprof", ".json", "{"),
        ("check RUNS/good.zprof --baseline RUNS/good.json", ".sarif", "{"),
        ("baseline save RUNS/good.zprof", ".json", "{"),
        ("plan --params 1B", ".md", "## "),
        ("plan --params 1B", ".html", "<!DOCTYPE"),
        ("plan --params 1B -f md", ".json", "## "),
        ("schema check", ".json", "{"),
    ],
)
def test_a_file_is_written_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, suffix: str, start: str
) -> None:
    monkeypatch.chdir(tmp_path)  # no limits of this repository
    target = tmp_path / f"out{suffix}"
    code, out, err = call(*line.split(), "-o", target)
    assert (code, bool(out)) == (0, line.startswith("check")), "a check prints its page all the same"
    assert str(target) in err
    text = target.read_text()
    assert text.lstrip().startswith(start)
    target.write_text("mine")
    code, _, err = call(*line.split(), "-o", target)
    assert (code, target.read_text()) == (2, "mine")
    assert "--force" in err
    assert call(*line.split(), "-o", target, "--force")[0] == 0
    assert target.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
