"""Columns and their groups against pandas."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.columns import Columns, Groups, OptionalInts, Texts, find_places

NUMBERS = st.integers(-(1 << 40), 1 << 40)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["all_gather", "", "reduce", "0,1"]),
        NUMBERS,
        st.none() | NUMBERS,
        st.none() | st.sampled_from(["a", "b"]),
    ),
    max_size=30,
)


def columns_and_frame(rows: list[Any]) -> tuple[Columns, pd.DataFrame]:
    rank, kind, size, launch, unit = ([row[at] for row in rows] for at in range(5))
    columns = Columns(
        {
            "rank": np.array(rank, dtype=np.int64),
            "kind": Texts.of(kind),
            "size": np.array(size, dtype=np.int64),
            "launch": OptionalInts.of(launch),
            "unit": Texts.of(unit),
        }
    )
    frame = pd.DataFrame(
        {
            "rank": np.array(rank, dtype=np.int64),
            "kind": np.array(kind, dtype=object),
            "size": np.array(size, dtype=np.int64),
            "launch": pd.array(launch, dtype="Int64"),
            "unit": np.array(unit, dtype=object),
        }
    )
    return columns, frame


@given(ROWS, st.randoms())
def test_a_selection_is_that_of_pandas(rows: list[Any], chance: Any) -> None:
    columns, frame = columns_and_frame(rows)
    mask = np.array([chance.random() < 0.5 for _ in rows], dtype=bool)
    places = np.array([chance.randrange(len(rows)) for _ in rows], dtype=np.int64)
    pd.testing.assert_frame_equal(columns.to_frame(), frame, check_index_type=False)
    pd.testing.assert_frame_equal(columns.at(mask).to_frame(), frame[mask], check_index_type=False)
    twice = columns.at(places).at(mask)
    pd.testing.assert_frame_equal(twice.to_frame(), frame.iloc[places][mask], check_index_type=False)
    assert columns.ints("launch", -7).tolist() == frame["launch"].fillna(-7).tolist()
    assert columns.texts("kind").equals("", "reduce").tolist() == frame["kind"].isin(["", "reduce"]).tolist()
    assert columns.known("unit").tolist() == frame["unit"].notna().tolist()
    np.testing.assert_array_equal(columns.floats("launch"), frame["launch"].astype("float64").to_numpy())
    assert columns.list_rows() == frame.astype(object).where(frame.notna(), None).to_dict("records")


@given(ROWS)
@pytest.mark.parametrize("by", [["rank"], ["kind"], ["rank", "kind"], ["kind", "rank"]])
def test_groups_are_those_of_pandas(by: list[str], rows: list[Any]) -> None:
    columns, frame = columns_and_frame(rows)
    if not rows:
        return
    grouped = frame.groupby(by)["size"]
    groups = Groups(*(columns[name] for name in by))  # type: ignore[arg-type]
    sizes = columns.ints("size")
    assert groups.sizes.tolist() == grouped.size().tolist()
    for own, theirs in (
        (groups.sum(sizes), grouped.sum()),
        (groups.min(sizes), grouped.min()),
        (groups.max(sizes), grouped.max()),
        (sizes[groups.first], grouped.first()),
        (groups.median(sizes), grouped.median()),
        (groups.count_distinct(sizes), grouped.nunique()),
    ):
        assert own.tolist() == theirs.tolist()
    np.testing.assert_allclose(groups.mean(sizes), grouped.mean().to_numpy())
    assert [part.tolist() for part in groups.split()] == [
        part.tolist() for part in frame.groupby(by).indices.values()
    ]
    assert np.array_equal(groups.sum(sizes)[groups.codes], grouped.transform("sum").to_numpy())
    assert groups.cumsum(sizes).tolist() == grouped.cumsum().tolist()
    before = pd.Series(np.arange(len(rows)), dtype="Int64").groupby([frame[name] for name in by]).shift()
    assert groups.find_previous().tolist() == before.fillna(-1).tolist()


@given(ROWS, ROWS)
def test_rows_with_equal_keys_are_found_as_by_a_merge(wanted: list[Any], among: list[Any]) -> None:
    keys = ("rank", "size")
    (columns, frame), (others, other_frame) = columns_and_frame(wanted), columns_and_frame(among)
    places = find_places(*([table.ints(name) for name in keys] for table in (columns, others)))
    last = other_frame.assign(place=range(len(among))).drop_duplicates(list(keys), keep="last")
    merged = frame.merge(last[[*keys, "place"]], on=list(keys), how="left")
    assert places.tolist() == merged["place"].fillna(-1).tolist()


@given(ROWS)
def test_words_are_changed_and_equal_ones_become_one(rows: list[Any]) -> None:
    columns, frame = columns_and_frame(rows)
    changed = columns.texts("unit").map(lambda unit: "one" if unit else unit)
    assert changed.tolist() == [unit and "one" for unit in frame["unit"]]
    assert len(changed.list_distinct()) <= 1


@given(ROWS, ROWS)
def test_tables_are_joined_as_by_pandas(above: list[Any], below: list[Any]) -> None:
    parts = [columns_and_frame(above), columns_and_frame(below)]
    joined = Columns.concat([columns for columns, _ in parts]).to_frame()
    expected = pd.concat([frame for _, frame in parts], ignore_index=True)
    pd.testing.assert_frame_equal(joined, expected, check_index_type=False)


@given(ROWS, st.integers(0, 12), st.integers(0, 20), st.integers(1, 7))
def test_arrow_tables_are_read_as_pandas_reads_them(rows: list[Any], skip: int, cut: int, size: int) -> None:
    table = pa.table(
        {
            "rank": pa.array([row[0] for row in rows], pa.int32()),
            "even": pa.array([row[2] % 2 == 0 for row in rows], pa.bool_()),
            "share": pa.array([None if row[3] is None else row[3] / 7 for row in rows], pa.float64()),
            "kind": pa.array([row[1] for row in rows], pa.string()).dictionary_encode(),
            "size": pa.array([row[2] for row in rows], pa.int64()),
            "launch": pa.array([row[3] for row in rows], pa.int64()),
            "unit": pa.array([row[4] for row in rows], pa.string()),
        }
    )
    parts = [table.slice(at, size) for at in range(skip, cut, size)]  # chunks that begin inside a byte
    table, rows = pa.concat_tables([table.slice(0, 0), *parts]), rows[skip:][: sum(map(len, parts))]
    columns, frame = columns_and_frame(rows)
    read = Columns.from_arrow(table)
    assert read.texts("unit").tolist() == columns.texts("unit").tolist()
    assert read.texts("kind").tolist() == frame["kind"].tolist()
    assert read.ints("rank").tolist() == frame["rank"].tolist()
    assert read.bools("even").tolist() == (frame["size"] % 2 == 0).tolist()
    assert read.ints("launch", -1).tolist() == frame["launch"].fillna(-1).tolist()
    assert read.known("launch").tolist() == frame["launch"].notna().tolist()
    np.testing.assert_array_equal(read.floats("share"), frame["launch"].astype("float64") / 7)


@given(ROWS)
def test_rows_are_told_and_read_back(rows: list[Any]) -> None:
    columns, _ = columns_and_frame(rows)
    listed = columns.list_rows()
    assert [tuple(row.values()) for row in listed] == rows
    assert Columns.from_rows(listed, columns.names).list_rows() == listed


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="lengths"):
        Columns({"a": np.arange(2), "b": np.arange(3)})


@pytest.mark.parametrize("words", [["a", "a", "b"], ["a", None, "b"]])
def test_a_foreign_dictionary_is_read_as_its_texts(words: list[str | None]) -> None:
    indices = pa.array([2, None, 1, 0, 1], pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))
    table = pa.table({"text": texts, "flag": [True, False] * 2 + [True], "size": [None, 1, 2, 3, None]})
    for part in (table, table.slice(1, 3), table.slice(0, 0)):
        read = Columns.from_arrow(part)
        assert read.texts("text").tolist() == part["text"].to_pylist()
        assert len(set(read.texts("text").words)) == len(read.texts("text").words)
        assert read.bools("flag").tolist() == part["flag"].to_pylist()
        assert read.floats("size").tolist() == pytest.approx(
            [np.nan if size is None else size for size in part["size"].to_pylist()], nan_ok=True
        )
