"""What no command accepts: exit code 2, one line on stderr that names the culprit, nothing written."""

import shlex
from pathlib import Path

import pytest

from tests.support.command_calls import Call

GOOD, JSON = "RUNS/good.zprof", "RUNS/good.json"
#: A command line, and what its line of stderr must name.
REFUSED = [
    ("diagnos RUN", "diagnose"),
    (f"{GOOD}", "zprof diagnose"),
    ("help diagnos", "diagnose"),
    ("--verison", "--version"),
    (f"diagnose {GOOD} --basline {GOOD}", "--baseline"),
    (f"diagnose --basline {GOOD}", "--baseline"),
    (f"diagnose {GOOD} {GOOD} --baseline {GOOD}", "BASELINE"),
    (f"report {GOOD} --baseline {GOOD} {GOOD}", "BASELINE"),
    (f"report {GOOD} --baseline {GOOD} --only time {GOOD}", "BASELINE"),
    (f"diagnose {GOOD} {GOOD} {GOOD}", "folder"),
    ("record --outpt x -- python a.py", "--output"),
    (f"diagnose {GOOD} --window stp", "step"),
    (f"diagnose {GOOD} --baseline {GOOD}x", "good.zprof"),
    (f"diagnose {GOOD.replace('good', 'god')}", "good.zprof"),
    (f"report {GOOD} {GOOD.replace('good', 'god')}", "good.zprof"),
    (f"check {GOOD} --baseline {GOOD.replace('good', 'god')}", "good.zprof"),
    (f"compare {GOOD} {GOOD.replace('good.zprof', 'good')}", "good.zprof"),
    ("baseline sav x", "save"),
    ("explain stragler", "straggler_rank"),
    ("simulate -o x --cause stragler", "straggler_rank"),
    ("completion tcsh", "bash"),
    ("repot", "repot"),
    ("report", "RUN"),
    ("report none.zprof", "none.zprof"),
    (f"report {GOOD} -f yaml", "text, json"),
    (f"report {GOOD} -o report.xyz", "-f"),
    (f"report {GOOD} -o no/report.txt", "folder"),
    (f"report {GOOD} -f json -o .", "folder"),
    (f"report {GOOD} --expected-busbw fast", "--expected-busbw"),
    ("report " + "x" * 300, "choose another"),
    (f"bundle {GOOD} -o {'x' * 300}.txt", "choose another"),
    (f"diagnose {GOOD} -f svg", "text, json"),
    (f"diagnose {GOOD} --tokens-per-step 0", "--tokens-per-step"),
    ("explain ZP301 --list", "zprof explain"),
    ("explain ZP999", "ZP999"),
    (f"compare {GOOD}", "B"),
    (f"compare {GOOD} {GOOD}x", "good.zprofx"),
    (f"compare {GOOD} {GOOD} -o both.svg", "format"),
    (f"export {GOOD}", "--perfetto"),
    (f"export {GOOD} -o x.json", "--perfetto"),
    (f"export {GOOD} --perfetto", "-o FILE"),
    (f"export {GOOD} --perfetto x.json -o y.json", "y.json"),
    ("export --perfetto -o x.json", "run"),
    (f"export {GOOD} --perfetto x.svg", ".json"),
    (f"export {GOOD} --perfetto nowhere/x.json", "folder"),
    (f"export {GOOD} --perfetto x.json --steps 77", "77"),
    (f"export {GOOD} --perfetto x.json --steps 5-3", "5-3"),
    (f"export {GOOD} --perfetto x.json --ranks 0,9", "9"),
    (f"export {GOOD} --perfetto x.json --ranks 0-99999999999", "99999999999"),
    ("plan", "--layers"),
    ("plan --params 1B --preset 1t", "--preset"),
    ("plan --layers 4", "--hidden"),
    ("plan --params many", "7.5e9"),
    ("plan --params 1.5", "integer"),
    ("plan --params 1B --dp 0", "1 or more"),
    ("plan --params 1B --dp -4", "--dp"),
    ("plan --params 1B --dp 2000000", "1,000,000"),
    ("plan --params 1B --bandwidth 100", "100GB/s"),
    ("plan --params 1B --bandwidth 100GB/s", "--hardware"),
    ("plan --preset 7.5b --vocabulary 0", "--vocabulary"),
    ("plan --params 1B --heads 4 --untied", "--heads and --untied"),
    ("plan --params 1B --context 64", "--layers"),
    ("plan --model no.such:thing --context 64", "--context"),
    ("plan --layers 4 --hidden 256 --context 64 --micro-batch 1 --sequence 65", "--sequence"),
    ("plan --params 1B --stage 1 --keep-last", "--stage 1"),
    ("plan --params 1B --hardware abacus", "v100"),
    ("plan --params 1B --hardware /no/such.toml", "/no/such.toml"),
    ("plan --preset nothing", "--preset list"),
    ("plan --layers 5 --hidden 256 --heads 3", "heads"),
    ("plan --params 1B --verify", "--verify"),
    ("plan --params 1B -f svg", "text, json, md, html"),
    ("whatif none.zprof", "none.zprof"),
    (f"whatif {GOOD} --bandwidth 2", "x2"),
    (f"whatif {GOOD} --stage 5", "--stage"),
    (f"whatif {GOOD} --shard-ranks 0", "1 or more"),
    (f"whatif {GOOD} -f junit", "text, json, md, html"),
    ("schema verdict", "report"),
    *(
        (f"simulate -o out --units 2 {wrong}", wrong.split()[0].lstrip("-"))
        for wrong in ("--ranks 1025", "--stage 4", "--steps 0", "--cause gremlins", "--strength 0",
                      "--megabytes -1", "--skew-us nan", "--seed -1", "--units 0", "--prefetch -1")
    ),
    ("record", "--output"),
    ("record -o r --time-steps -1 x", "--time-steps"),
    ("record -o r --memory-mode no x", "--memory-mode"),
    ("record -o r --", "program"),
    ("baseline", "ACTION"),
    (f"baseline remove {JSON}", "remove"),
    (f"baseline update {GOOD} none.json", "none.json"),
    (f"baseline update none.zprof {JSON}", "none.zprof"),
    ("baseline show none.json", "none.json"),
    (f"baseline show {GOOD}", "good.zprof"),
    (f"baseline show {JSON} -f xml", "xml"),
    ("baseline save none.zprof", "none.zprof"),
    (f"baseline save {GOOD} -o no/base.json", "folder"),
    ("check none.zprof --step-time fast", "--step-time"),
    ("check none.zprof --peak-memory '24 ms'", "--peak-memory"),
    ("check none.zprof --tenant activations", "activations=+0%"),
    ("check none.zprof --tenant activation=+0%", "activations"),
    ("check none.zprof --tenant gradients=fast", "--tenant gradients"),
    ("check none.zprof --config none.toml", "none.toml"),
    ("check none.zprof -f yaml", "text, json"),
    ("check none.zprof -o check.xyz", "suffix"),
    ("check none.zprof -o no/check.md", "folder"),
    ("check none.zprof -o a.json -o a.json", "a.json"),
    ("check none.zprof --junit a.xml -o CWD/a.xml", "a.xml"),
    ("check none.zprof --github -f json", "-o FILE"),
    ("check none.zprof", "none.zprof"),
    (f"check {GOOD} --baseline none.zprof", "none.zprof"),
    (f"check {GOOD} --baseline {'x' * 300}.json", "choose another"),
    (f"check {GOOD} --require-baseline", "zprof baseline save"),
    ("tui none.zprof", "none.zprof"),
    (f"tui {GOOD} --theme 'dracul\x1b[2Ja'", "textual-light"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "named"), REFUSED)
def test_bad_usage_is_refused_in_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*shlex.split(line.replace("CWD", str(tmp_path))))
    assert (code, out) == (2, "")
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert named in err
    assert err.removesuffix("\n").isprintable()
    assert not list(tmp_path.iterdir())
