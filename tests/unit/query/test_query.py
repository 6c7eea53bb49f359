"""SQL over runs: figures equal those of the report, and a query reads the tables and nothing else."""

import json
import os
from pathlib import Path

import pytest

import zprof
from tests.support.simulations import simulate_traces
from zprof.base.errors import BadInput
from zprof.cli import main
from zprof.notebook.run import AnalysedRun
from zprof.query import database
from zprof.query.database import Answer, QueryLimits
from zprof.query.tables import MeasuredRun, list_tables
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job

LIMITS = QueryLimits()
PAGE = Path(__file__).parents[3] / "docs/query.md"


def ask(run: AnalysedRun, sql: str, limits: QueryLimits = LIMITS) -> Answer:
    return database.ask(MeasuredRun(run, lambda: run.analysis, lambda: run.report), sql, limits)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AnalysedRun:
    folder = tmp_path_factory.mktemp("query")
    simulate_traces(make_mesh_job(degrees=Degrees(pipeline=2, data=2)), folder / "traces")
    return zprof.load(folder / "traces")


def test_every_table_has_the_columns_that_it_documents(run: AnalysedRun) -> None:
    for table in list_tables():
        described = ask(run, f'describe select * from "{table.name}"').rows.to_pylist()
        found = [(row["column_name"], row["column_type"]) for row in described]
        assert found == list(table.columns), table.name


def test_sums_are_those_of_the_report(run: AnalysedRun) -> None:
    terms = ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns")
    means = ", ".join(f"avg({term})" for term in terms)
    rows = ask(run, f"select rank, {means} from steps group by rank order by rank").rows.to_pylist()
    ranks = {rank.rank: rank for rank in run.report.time.per_rank}
    assert [row["rank"] for row in rows] == sorted(ranks)
    for row in rows:
        for term in terms:
            assert row[f"avg({term})"] == pytest.approx(getattr(ranks[row["rank"]], term), abs=1)
    found = ask(run, "select id, saving_ns[1] least, saving_ns[2] most from findings").rows.to_pylist()
    assert [(row["id"], (row["least"], row["most"])) for row in found] == [
        (finding.id, finding.saving_ns) for finding in run.report.findings
    ]
    (recorded,) = ask(run, "select count(*) n from recorded_collectives").rows.to_pylist()
    assert recorded["n"] == sum(run.table(rank, "collectives").num_rows for rank in run.ranks)


def test_what_is_unknown_is_null(run: AnalysedRun) -> None:
    (row,) = ask(
        run, "select count(*) n, count(phase) phases from collectives where group_size > 1"
    ).rows.to_pylist()
    assert row["n"] > row["phases"]


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "select 1; select 2",
        "create table t as select 1",
        "drop view steps",
        "insert into steps select * from steps",
        "update steps set rank = 1",
        "delete from steps",
        "attach '{file}.db'",
        "copy (select 1) to '{file}.csv'",
        "export database '{file}'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma memory_limit = '1TB'",
        "call pragma_version()",
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/etc/passwd')",
        "select * from read_json('/etc/passwd')",
        "select * from parquet_scan('{file}.parquet')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from run",
        "select * from sys",
        "select getenv('HOME')",
        "select * from steps where rank = (select max(x) from read_csv('/etc/passwd') t(x))",
        "with t as (select * from read_text('/etc/passwd')) select * from t",
        "select * from query('select * from read_text(''/etc/passwd'')')",
        "select * from sqlite_scan('{file}.db', 't')",
        "select no_such_column from steps",
        "selct 1",
        "select '" + "x" * 200_000 + "'",
    ],
)
def test_a_query_reads_tables_and_nothing_else(run: AnalysedRun, sql: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        ask(run, sql.format(file=tmp_path / "out"))
    assert len(str(error.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_limits_end_a_query(run: AnalysedRun) -> None:
    endless = "select count(*) from range(1000000000) a, range(1000000000) b where a.range * b.range % 7 = 3"
    with pytest.raises(BadInput, match="not done in"):
        ask(run, endless, QueryLimits(wall_s=0.2))
    large = "select list(range) from range(200000000)"
    with pytest.raises(BadInput, match="needs more than"):
        ask(run, large, QueryLimits(memory_bytes=64 << 20))
    answer = ask(run, "select * from range(1000)", QueryLimits(max_rows=10))
    assert (len(answer.rows), answer.is_cut) == (10, True)


def test_missing_table_names_a_similar_one(run: AnalysedRun) -> None:
    with pytest.raises(BadInput) as error:
        ask(run, "select * from collective")
    assert "did you mean collectives" in error.value.hint


def test_outputs(run: AnalysedRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sql = "select rank, 'a\x1b[2J,\"b\"' as text, 1.5 as x, null as y from ranks order by rank limit 2"
    assert main(["query", str(run.path), sql]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["rank", "text", "x", "y"]
    assert "\x1b" not in text
    assert "(2 rows)" in text
    assert main(["query", str(run.path), sql, "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == [[0, 'a\x1b[2J,"b"', 1.5, None], [1, 'a\x1b[2J,"b"', 1.5, None]]
    assert main(["query", str(run.path), sql, "-f", "csv", "-o", str(tmp_path / "a.csv")]) == 0
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "rank,text,x,y"
    assert list(run.sql("select rank from ranks order by rank")["rank"]) == sorted(run.ranks)


def test_tables_are_listed(run: AnalysedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--tables"]) == 0
    assert "recorded_block" in capsys.readouterr().out
    assert main(["query", str(run.path), "--tables"]) == 0
    assert "recorded_block" not in capsys.readouterr().out
    assert main(["query", "--tables", "steps"]) == 0
    assert "exposed_wait_ns" in capsys.readouterr().out
    assert main(["query", "--tables", "stps"]) == 2
    assert "did you mean steps" in capsys.readouterr().err


def test_the_page_lists_the_tables() -> None:
    rows = [f"| `{table.name}` | {table.title} |" for table in list_tables()]
    text = PAGE.read_text()
    head = text[: text.index("## Tables")]
    told = text[text.index("## Tables") :].split("\n| table")[0]
    expected = "\n".join([f"{head}{told.rstrip()}", "", "| table | a row is |", "|---|---|", *rows, ""])
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected
