"""Collect the redacted parts of a run for support into one zip file (schema ``zprof.bundle/1``).

Collectives are included, with an allow-list of columns. Events are omitted, because their names come from
the program.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, to_builtins

from zprof.base.formatting import escape_surrogates
from zprof.integrations.redaction import AllowList, Pseudonyms, collect_own_words, redact_group
from zprof.model.doctor import Doctor
from zprof.model.json_format import to_tree
from zprof.model.report import Report
from zprof.run.manifest import RankManifest
from zprof.run.reader import Run
from zprof.run.table_reader import make_texts
from zprof.version import __version__

SCHEMA = "zprof.bundle/1"
#: Maximum number of ranks with tables, to keep the file small enough for a ticket.
_MAX_TABLES = 64
#: A fixed date, to make the file depend only on its content.
_DATE = (1980, 1, 1, 0, 0, 0)
_PLAIN_COLUMNS = (
    "group_size",
    "sequence",
    "bytes",
    "start_ns",
    "end_ns",
    "launch_start_ns",
    "launch_end_ns",
    "wait_start_ns",
    "wait_end_ns",
    "stream",
    "peer_rank",
)
#: Text columns with a fixed set of values; any other value is redacted.
_TEXT_COLUMNS = ("kind", "dtype", "method")


class BundleFile(Struct, frozen=True, kw_only=True):
    """One file of a bundle; ``description`` is for the person who shares it."""

    name: str
    description: str
    content: bytes


class Bundle(Struct, frozen=True, kw_only=True):
    """Parts of a bundle, the pseudonyms by name (not in the bundle), and the omitted keys and tables."""

    parts: tuple[BundleFile, ...]
    names: dict[str, str]
    left_out: tuple[str, ...]


def collect_bundle(run: Run, report: Report, doctor: Doctor) -> Bundle:
    """Return all redacted parts.

    Raises:
        BadInput: a table of the run is damaged.
    """
    names = Pseudonyms(collect_own_words())
    tables, missing = _collect_tables(run, names)
    ranks = [_make_rank_tree(manifest) for manifest in run.rank_manifests.values()]
    run_name = escape_surrogates(run.path.resolve().name)
    report_tree, run_tree = to_tree(report), {**to_builtins(run.manifest), "ranks": ranks, "name": run_name}
    for tree in (report_tree, run_tree):
        # First pass for names: a string may contain a name that appears only later.
        AllowList(names).filter_tree(tree)
    allowed = AllowList(names)
    # Redact the check results, which may contain paths; check names are zprof's own.
    texts = ("found", "without", "remedy")
    checks = [
        {key: names.redact_text(text) if key in texts else text for key, text in to_tree(check).items()}
        for check in doctor.checks
    ]
    parts = [
        BundleFile(
            name="report.json",
            description="the report",
            content=_encode_json(allowed.filter_tree(report_tree)),
        ),
        BundleFile(
            name="run.json",
            description="what was recorded, and how",
            content=_encode_json(allowed.filter_tree(run_tree)),
        ),
        BundleFile(
            name="doctor.json",
            description="this machine",
            content=_encode_json({**to_tree(doctor), "checks": checks}),
        ),
        *tables,
    ]
    left_out = (*sorted(allowed.dropped), *missing)
    listed = {entry if names.is_own(entry) else names.redact_text(entry) for entry in left_out}
    parts.insert(0, _make_index(parts, sorted(listed)))
    return Bundle(parts=tuple(parts), names=names.assigned, left_out=left_out)


def write_bundle(bundle: Bundle, file: BinaryIO) -> None:
    """Write the parts as a zip file."""
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for part in bundle.parts:
            entry = zipfile.ZipInfo(part.name, date_time=_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, part.content)


def _collect_tables(run: Run, names: Pseudonyms) -> tuple[list[BundleFile], list[str]]:
    ranks = [rank for rank in run.ranks if run.has_table(rank, "collectives")]
    parts = [
        BundleFile(
            name=f"collectives/rank{rank:05d}.parquet",
            description=f"collectives of rank {rank}: times and sizes",
            content=redact_collectives(run, rank, names),
        )
        for rank in ranks[:_MAX_TABLES]
    ]
    rest = len(ranks) - len(parts)
    return parts, [f"collectives of {rest} more ranks"] if rest else []


def _make_rank_tree(manifest: RankManifest) -> dict[str, Any]:
    tree = to_builtins(manifest)
    rows = {name: file["rows"] for name, file in tree.pop("files").items()}
    return {**tree, "files": rows}


def _make_index(parts: Sequence[BundleFile], left_out: Sequence[str]) -> BundleFile:
    tree = {
        "schema": SCHEMA,
        "zprof_version": __version__,
        "parts": {part.name: part.description for part in parts},
        "left_out": list(left_out),
    }
    return BundleFile(name="bundle.json", description="this list", content=_encode_json(tree))


def _encode_json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode("ascii")


def redact_collectives(run: Run, rank: int, names: Pseudonyms) -> bytes:
    """Return a rank's redacted collectives as a Parquet file.

    Raises:
        BadInput: the table is damaged.
    """
    table = run.table(rank, "collectives")
    columns = {name: table.column(name) for name in _PLAIN_COLUMNS}
    columns |= {name: _map_texts(table.column(name), names.redact_text) for name in _TEXT_COLUMNS}
    columns["group"] = _map_texts(table.column("group"), lambda text: redact_group(text, names))
    columns["unit"] = _map_texts(table.column("unit"), lambda text: names.replace_name(text, "module"))
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def _map_texts(column: pa.ChunkedArray, redact: Callable[[str], str]) -> pa.Array:
    """Apply ``redact`` once to each distinct string of a dictionary column."""
    encoded = column.unify_dictionaries().combine_chunks()
    words = make_texts([redact(word) for word in encoded.dictionary.to_pylist()])
    return pa.DictionaryArray.from_arrays(encoded.indices, words).cast(pa.string())
