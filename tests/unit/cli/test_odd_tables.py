"""Tables of other writers: a missing value, another nullability, a text that this version does not know."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_calls import Call
from zprof.run.schema import TABLES

Change = Callable[[list[Any]], list[Any]]


@pytest.fixture
def odd(runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(runs / "good.zprof", tmp_path / "odd.zprof")


def rewrite(run: Path, table: str, name: str, change: Change) -> None:
    """Change a column, which becomes nullable, of rank 0; checksum and manifest agree."""
    path = run / f"rank00000/{table}.parquet"
    content = pq.read_table(path)
    index = content.schema.get_field_index(name)
    kind = content.schema.field(index).type
    values = change(content.column(name).to_pylist())
    column = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind)
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
    pq.write_table(content.set_column(index, pa.field(name, kind), column), path)
    manifest = json.loads((path.parent / "rank.json").read_text())
    manifest["files"][table]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "rank.json").write_text(json.dumps(manifest))


def lose_one(values: list[Any]) -> list[Any]:
    return [*values[:-1], None]


def lose_all(values: list[Any]) -> list[Any]:
    return [None] * len(values)


USED = ("collectives", "events", "mark")
COLUMNS = [(table, field) for table in USED for field in TABLES[table]]


@pytest.mark.parametrize(("table", "field"), COLUMNS, ids=[f"{table} {f.name}" for table, f in COLUMNS])
def test_a_missing_value_is_damage_unless_the_column_may_have_one(
    table: str, field: pa.Field, odd: Path, call: Call
) -> None:
    rewrite(odd, table, field.name, lose_one)
    if field.nullable:
        assert call("report", odd)[0] == 0
        rewrite(odd, table, field.name, lose_all)
        assert call("report", odd)[0] == 0
    elif (table, field.name) != ("events", "thread"):  # which this report does not read
        code, out, err = call("report", odd)
        assert (code, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.parametrize("kinds", ["one", "all"])
def test_a_kind_of_a_newer_version_counts_as_other_with_a_gap(kinds: str, odd: Path, call: Call) -> None:
    def rename(values: list[Any]) -> list[Any]:
        return [*values[:-1], "all_to_some"] if kinds == "one" else ["all_to_some"] * len(values)

    rewrite(odd, "collectives", "kind", rename)
    code, out, _ = call("report", odd, "-f", "json")
    report = json.loads(out)
    assert code == 0
    assert any("all_to_some" in gap["reason"] and gap["rank"] == 0 for gap in report["gaps"])
    assert "other" in {row["kind"] for row in report["time"]["collectives"]}
