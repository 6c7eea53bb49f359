"""Hostile inputs to the command line: names, run folders, caches and baselines, made by rule.

What is damaged is refused in one line, or its loss is said; what is only odd has the answer of what is not.
Each group of cases lists all of them; every tenth runs with ``make test``, the others are slow.
"""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_calls import Call
from tests.support.flight_dumps import make_dump, to_json
from tests.support.hostile_names import NAMES
from tests.support.trace_folders import write_ranks
from zprof.run.schema import TABLES

DEMO = Path(__file__).parents[3] / "docs/pictures/runs/zprof-demo"
LIMIT_S = 60
Answer = tuple[int, str, str]
#: What stands for any value of a JSON file.
VALUES = (None, -1, 10**30, "\x1b[2J\nOK", [], {}, True, 1.5, "", [None], 1 << 62)


def sample(cases: list[Any]) -> list[Any]:
    """Return all cases as parameters; nine of ten are slow."""
    return [
        pytest.param(*case, marks=() if number % 10 == 0 else pytest.mark.slow, id=ascii(case)[1:60])
        for number, case in enumerate(cases)
    ]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, an empty cache, and an end to what waits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "here/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    signal.alarm(LIMIT_S)
    yield tmp_path / "here"
    signal.alarm(0)


def assert_refused_or_answered(answer: Answer, named: str = "") -> None:
    """Exit code 1 needs a failed gate; an error is one line that names what, and what to do."""
    code, out, err = answer
    assert "Traceback" not in out + err
    assert code in (0, 2, 3) or (code == 1 and '"failed"' in out), err
    if code in (2, 3) and not out:
        line = err.removesuffix("\n").rpartition("\n")[2]
        assert line.startswith("zprof: "), err
        assert line.isprintable()
        assert len(line) < 1_500
        assert "; " in line, "no remedy"
        assert named in line, err


def assert_nothing_lost(answer: Answer, whole: dict[str, Any], named: str = "") -> None:
    """Refused, or the same answer, or more gaps than without the damage."""
    assert_refused_or_answered(answer, named)
    if answer[0] == 0:
        found = json.loads(answer[1])
        is_same = all(found[part] == whole[part] for part in ("verdict", "time", "memory", "findings"))
        assert is_same or list_gaps(found) - list_gaps(whole), "lost without a word"


def list_gaps(report: dict[str, Any]) -> set[str]:
    return {json.dumps(gap, sort_keys=True) for gap in report["gaps"]}


def sign(run: Path) -> None:
    """Make the checksums and counts of rank 0 agree with its tables."""
    manifest = json.loads((run / "rank00000/rank.json").read_text())
    for name, entry in manifest["files"].items():
        table = run / f"rank00000/{name}.parquet"
        if table.is_file():
            entry["sha256"] = hashlib.sha256(table.read_bytes()).hexdigest()
    (run / "rank00000/rank.json").write_text(json.dumps(manifest))


def list_leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children = (
        tree.items() if isinstance(tree, dict) else enumerate(tree[:1]) if isinstance(tree, list) else ()
    )
    for key, child in children:
        yield from list_leaves(child, (*path, key))


def edit(file: Path, leaf: tuple[Any, ...], value: Any) -> None:
    tree = node = json.loads(file.read_text())
    for key in leaf[:-1]:
        node = node[key]
    node[leaf[-1]] = value
    file.write_text(json.dumps(tree))


def cross(leaves: list[Any], values: tuple[Any, ...], each: int) -> list[Any]:
    """Each leaf with some of the values, so that all values come in turn."""
    return [
        (leaf, values[(number * each + turn) % len(values)])
        for number, leaf in enumerate(leaves)
        for turn in range(each)
    ]


# Names

BYTES = [b"caf\xe9 \xff", b"a\nb", b"\x1b[2J\x1b]0;x\x07", b"[bold]x", b"[]]", b"<script>alert(1)",
         b"x" * 242, b"-rf", b"--help", b" ", b"  a  ", b"*?[!a]", b"$(x)`y`", b"a;b", "\u202egnp".encode(),
         b"~", b"%s{0}", b"'\"", b"=", b"@x", b"COM1:", b"...", b"rank1_of_2"]  # fmt: skip
ENDINGS = {"run": ".zprof", "trace": "_rank0.json", "traces": "", "dumps": ""}


def make_input(kind: str, path: Path, runs: Path) -> list[str]:
    """Write an input of the kind; return the command that reads it."""
    if kind == "run":
        shutil.copytree(runs / "good.zprof", path)
    elif kind == "trace":
        write_ranks(path.parent / "made", 1)[0].rename(path)
    elif kind == "traces":
        write_ranks(path, 2)
    else:
        path.mkdir()
        for rank in range(2):
            (path / f"rank{rank}.json").write_bytes(to_json(make_dump()))
    return ["hang" if kind == "dumps" else "diagnose", "-f", "json"]


@pytest.mark.parametrize(("name", "kind"), sample([(name, kind) for name in BYTES for kind in ENDINGS]))
def test_a_name_changes_no_answer(name: bytes, kind: str, call: Call, runs: Path, place: Path) -> None:
    answers = []
    for stem in (os.fsdecode(name), "ordinary-name"):
        path = place / f"{stem}{ENDINGS[kind]}"
        command = make_input(kind, path, runs)
        code, out, err = call(*command, path.name if not path.name.startswith("-") else f"./{path.name}")
        (out + err).encode()
        assert code == 0, err
        tree = json.loads(out)
        del tree["run"]["name"]
        gaps = len(tree.pop("gaps"))  # which may name the file
        answers.append((tree, gaps))
    assert answers[0] == answers[1]


def link_around(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def fill_with_itself(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").symlink_to(".")


PATHS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "loop of links": link_around,
    "pipe": os.mkfifo,
    "empty file": Path.touch,
    "empty folder": Path.mkdir,
    "manifest is a folder": lambda path: (path / "manifest.json").mkdir(parents=True),
    "manifest is a link": fill_with_itself,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "zeros": lambda path: path.write_bytes(bytes(1 << 20)),
    "folder of a pipe": lambda path: (path.mkdir(), os.mkfifo(path / "rank0.json")),
    "text": lambda path: path.write_text("\n".join(NAMES[:8]), errors="replace"),
}
READING = ["diagnose BAD", "report BAD", "report GOOD --baseline BAD", "check BAD --step-time 1s",
           "check GOOD --baseline BAD", "compare GOOD BAD", "hang BAD", "bundle BAD -o x.zip", "whatif BAD",
           "export BAD --perfetto x.json", "baseline save BAD", "baseline show BAD", "import BAD -o x.zprof",
           "check GOOD --step-time 1s --config BAD"]  # fmt: skip


@pytest.mark.parametrize(("kind", "line"), sample([(kind, line) for kind in PATHS for line in READING]))
def test_what_is_no_input_is_refused(kind: str, line: str, call: Call, runs: Path, place: Path) -> None:
    PATHS[kind](place / "bad")
    words = {"BAD": str(place / "bad"), "GOOD": str(runs / "good.zprof")}
    answer = call(*(words.get(word, word) for word in line.split()))
    assert_refused_or_answered(answer)
    assert answer[0] in (2, 3) or "--config" in line or line.startswith("hang"), answer


@pytest.mark.parametrize(
    ("line", "wrong"), sample([(line, wrong) for line in READING for wrong in ("", "a\0b", "x" * 5_000)])
)
def test_what_is_no_path_is_refused(line: str, wrong: str, call: Call, runs: Path) -> None:
    words = {"BAD": wrong, "GOOD": str(runs / "good.zprof")}
    code, out, err = call(*(words.get(word, word) for word in line.split()))
    assert (code, out) == (2, ""), err
    assert_refused_or_answered((code, out, err))


# Run folders


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return {}


@pytest.fixture
def run(place: Path) -> Path:
    return shutil.copytree(DEMO / "zero3.zprof", place / "bad.zprof")


@pytest.fixture
def judge(call: Call, run: Path, whole: dict[str, Any]) -> Callable[[], None]:
    """Diagnose the run after it was damaged."""
    if not whole:
        whole.update(json.loads(call("diagnose", run, "-f", "json")[1]))
    return lambda: assert_nothing_lost(call("diagnose", run, "-f", "json"), whole, "bad.zprof")


LEAVES = [
    (file, *leaf)
    for file in ("manifest.json", "rank00000/rank.json")
    for leaf in list_leaves(json.loads((DEMO / "zero3.zprof" / file).read_text()))
]


@pytest.mark.parametrize(("leaf", "value"), sample(cross(LEAVES, VALUES, 2)))
def test_a_changed_manifest_loses_nothing_silently(
    leaf: tuple[Any, ...], value: Any, run: Path, judge: Callable[[], None]
) -> None:
    edit(run / leaf[0], leaf[1:], value)
    judge()


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(table: Path) -> None:
        table.unlink()
        make(table)

    return change


def drop_column(table: Path, number: int) -> None:
    content = pq.read_table(table)
    pq.write_table(content.drop_columns(content.column_names[number:][:1]), table)


def find_other_table(table: Path) -> Path:
    """Return a table of another kind; one of the same kind from another rank is not damaged."""
    return table.with_name("role.parquet" if table.stem == "mark" else "mark.parquet")


TABLE_CHANGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda table: table.write_bytes(b""),
    "half": lambda table: table.write_bytes(table.read_bytes()[: table.stat().st_size // 2]),
    "zeros": lambda table: table.write_bytes(bytes(table.stat().st_size)),
    "folder": replace_by(Path.mkdir),
    "pipe": replace_by(os.mkfifo),
    "loop": replace_by(lambda table: table.symlink_to(table.name)),
    "another table": lambda table: shutil.copy(find_other_table(table), table),
    "no rows": lambda table: pq.write_table(pq.read_table(table).slice(0, 0), table),
    "fewer rows": lambda table: pq.write_table(pq.read_table(table).slice(0, 3), table),
    "rows twice": lambda table: pq.write_table(pa.concat_tables([pq.read_table(table)] * 2), table),
    "no first column": lambda table: drop_column(table, 0),
    "no last column": lambda table: drop_column(table, -1),
}  # fmt: skip
IN_DEMO = [path.stem for path in sorted((DEMO / "zero3.zprof/rank00000").glob("*.parquet"))]


@pytest.mark.parametrize(
    ("table", "change"), sample([(table, change) for table in IN_DEMO for change in TABLE_CHANGES])
)
def test_a_changed_table_loses_nothing_silently(
    table: str, change: str, run: Path, judge: Callable[[], None]
) -> None:
    TABLE_CHANGES[change](run / f"rank00000/{table}.parquet")
    sign(run)
    judge()


COLUMNS = [(table, field.name) for table in IN_DEMO for field in TABLES[table]]


@pytest.mark.parametrize(("column", "kind"), sample(cross(COLUMNS, ("null", "all null", "odd"), 2)))
def test_a_changed_column_is_no_internal_error(
    column: tuple[str, str], kind: str, run: Path, call: Call
) -> None:
    """Odd is an unknown text, or a number that nothing has."""
    path = run / f"rank00000/{column[0]}.parquet"
    content = pq.read_table(path)
    index = content.schema.get_field_index(column[1])
    field = content.schema.field(index)
    values = content.column(column[1]).to_pylist()
    odd = "\x1b[2J of a newer version" if pa.types.is_dictionary(field.type) else (1 << 31) - 1
    new = values if pa.types.is_boolean(field.type) else [None if "null" in kind else odd] * len(values)
    new = new if kind == "all null" else [*values[:-1], *new[-1:]]
    column_type = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    made = pa.array(new, column_type)
    made = made.dictionary_encode() if pa.types.is_dictionary(field.type) else made
    pq.write_table(content.set_column(index, pa.field(column[1], field.type), made), path)
    sign(run)
    assert_refused_or_answered(call("diagnose", run, "-f", "json"), "bad.zprof")


# CI

CI_RUN = DEMO / "zero3-prefetch.zprof"


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from zprof.cli import main

    path = tmp_path_factory.mktemp("baseline") / "base.json"
    assert main(["baseline", "save", str(CI_RUN), "-o", str(path)]) == 0
    return path


LEAVES_OF_BASELINE = [
    "schema", "zprof_version", "name", "conditions", "conditions.device", "conditions.backend",
    "conditions.world_size", "conditions.engine", "conditions.stage", "conditions.torch",
    "conditions.modelled", "conditions.window", "memory", "memory.peak_bytes", "memory.untagged_bytes",
    "memory.tenants", "memory.tenants.parameters", "collectives", "collectives.0", "collectives.0.kind",
    "collectives.0.dtype", "collectives.0.group_size", "collectives.0.count", "collectives.0.bytes",
    "collectives.0.lower_bound",
    "time", "time.wall_ns", "time.wall_ns.0", "time.exposed_ns", "time.exposed_ns.0", "time.exposed_ratio",
    "time.overlap_ratio", "time.exposed_wait_ns", "time.collective_ns", "time.upper_bound",
    "time.wait_lower_bound", "time.missing_ranks",
]  # fmt: skip


@pytest.mark.parametrize(
    ("leaf", "value"), sample(cross(LEAVES_OF_BASELINE, (*VALUES, float("nan"), float("inf")), 4))
)
def test_a_changed_baseline_is_never_green_by_its_loss(
    leaf: str, value: Any, call: Call, baseline: Path, place: Path
) -> None:
    shutil.copy(baseline, "bad.json")
    edit(Path("bad.json"), tuple(int(key) if key.isdigit() else key for key in leaf.split(".")), value)
    command = ("check", DEMO / "zero3.zprof", "--baseline", "bad.json", "--require-baseline", "-f", "json")
    answer = call(*command)
    assert_refused_or_answered(answer)
    assert answer[1] or "bad.json" in answer[2]
    assert answer[0] != 0


# Caches


def list_cached(place: Path) -> list[Path]:
    return sorted(path for path in (place.parent / "cache").rglob("*") if path.is_file() or path.is_symlink())


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CACHE_CHANGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "loop": replace_by(lambda path: path.symlink_to(path.name)),
    "pipe": make_pipe,
    "folder": replace_by(Path.mkdir),
    "huge": lambda path: os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize(
    ("kind", "change", "number"),
    sample(
        [
            (kind, change, number)
            for kind in ("run", "traces")
            for change in CACHE_CHANGES
            for number in (0, 0.5, 1)
        ]
    ),
)
def test_a_damaged_cache_costs_no_answer(
    kind: str, change: str, number: float, call: Call, runs: Path, place: Path
) -> None:
    command = (*make_input(kind, place / "given", runs), place / "given")
    code, out, err = call(*command)
    files = list_cached(place)
    assert (code, bool(files)) == (0, True), err
    CACHE_CHANGES[change](files[round(number * (len(files) - 1))])
    assert call(*command)[:2] == (0, out)
