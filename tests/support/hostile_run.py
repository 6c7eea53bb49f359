"""A recording whose names try to steer: markup, escape sequences, turned text, very long and wide names."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

#: What a name has at its end, one after the other.
ENDS = (
    "[bold]loud[/bold]",
    "[@click=app.quit]quit[/]",
    "[link=file:///etc]",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m\r\nOK",
    "\u202egnirts\u2066",
    "zero\u200bwidth\ufeff\u200d",
    "e\u0301\u0301\u0301\u0301",
    "表示名前の長い",
    "x" * 10_000,
    "|`<b>&lt;",
    "[/]]",
    "\ud7ff\uffff$(tput)",
)
_COLUMNS = {
    "events": ("name",),
    "collectives": ("group", "unit"),
    "alloc": ("module", "operator"),
    "stack": ("file", "function"),
}
#: Names that zprof itself gives and looks for.
_OWN = ("zprof::", "gloo:", "ProfilerStep")


def hostile(name: str, place: int) -> str:
    """A name with one of the ends."""
    return f"{name}{ENDS[place % len(ENDS)]}"


def poison(source: Path, target: Path) -> Path:
    """A copy of a run with hostile names everywhere where a program or a machine gives one."""
    shutil.copytree(source, target)
    for rank in target.glob("rank*"):
        for table, columns in _COLUMNS.items():
            _rewrite(rank / f"{table}.parquet", columns)
        _edit(rank / "rank.json", _host)
    _edit(target / "manifest.json", _facts)
    return target


def _rewrite(path: Path, columns: tuple[str, ...]) -> None:
    table = pq.read_table(path)
    for column in columns:
        place = table.schema.get_field_index(column)
        values = [None if value is None else str(value) for value in table[column].to_pylist()]
        known = {value: at for at, value in enumerate(sorted({value for value in values if value}))}
        named = [
            value if not value or value.startswith(_OWN) else hostile(value, known[value]) for value in values
        ]
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.array(named).cast(field.type))
    pq.write_table(table, path, compression="zstd")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    _edit(path.parent / "rank.json", lambda content: content["files"][path.stem].update(sha256=digest))


def _host(content: dict) -> None:  # type: ignore[type-arg]
    content["host"] = "".join(ENDS[:8])
    content["gaps"] = [
        {"what": f"a gap {end}", "reason": f"because {end}", "remedy": end, "rank": None} for end in ENDS
    ]


def _facts(content: dict) -> None:  # type: ignore[type-arg]
    content["backend"] = f"gloo{ENDS[3]}"
    content["environment"]["cuda"] = ENDS[0] + ENDS[3]
    content["training"]["modelled"] = [f"link {end}" for end in ENDS]


def _edit(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
