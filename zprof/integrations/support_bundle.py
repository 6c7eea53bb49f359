"""Collect the redacted parts of a run that support needs into one zip file (schema ``zprof.bundle/1``).

Collectives are included with an allow-list of columns. Events are not, because their names come from the
program.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.integrations.redaction import AllowList, StandIns, read_own_words, redact_group
from zprof.model.doctor import Doctor
from zprof.model.json_format import to_tree
from zprof.model.report import Report
from zprof.run.manifest import RankManifest
from zprof.run.reader import Run
from zprof.version import __version__

SCHEMA = "zprof.bundle/1"
#: Tables of more ranks do not help and make the file too large for a ticket.
_MAX_TABLES = 64
#: A fixed date makes the file depend on its content only.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of a bundle; ``says`` describes it to the person who shares it."""

    name: str
    says: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Parts of a bundle, the stand-ins by name (not in the bundle), and the keys and tables left out."""

    parts: tuple[Part, ...]
    names: dict[str, str]
    left_out: tuple[str, ...]


def collect_bundle(run: Run, report: Report, doctor: Doctor) -> Bundle:
    """Return all redacted parts.

    Raises:
        BadInput: a table of the run is damaged.
    """
    names = StandIns(read_own_words())
    tables, missing = _collect_tables(run, names)
    report_tree, run_tree = to_tree(report), _collect_manifests(run)
    for tree in (report_tree, run_tree):
        # First pass for names: a text may contain a name that only appears later.
        AllowList(names).tree(tree)
    allowed = AllowList(names)
    parts = [
        Part(name="report.json", says="the report", content=_json(allowed.tree(report_tree))),
        Part(name="run.json", says="what was recorded, and how", content=_json(allowed.tree(run_tree))),
        Part(name="doctor.json", says="this machine", content=_json(_redact_doctor(doctor, names))),
        *tables,
    ]
    left_out = (*sorted(allowed.dropped), *missing)
    told = {each if names.is_own(each) else names.scrubbed(each) for each in left_out}
    parts.insert(0, _make_index(parts, sorted(told)))
    return Bundle(parts=tuple(parts), names=names.given, left_out=left_out)


def write_bundle(bundle: Bundle, file: BinaryIO) -> None:
    """Write the parts as a zip file."""
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for part in bundle.parts:
            entry = zipfile.ZipInfo(part.name, date_time=_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, part.content)


def _collect_tables(run: Run, names: StandIns) -> tuple[list[Part], list[str]]:
    ranks = [rank for rank in run.ranks if run.has_table(rank, "collectives")]
    parts = [
        Part(
            name=f"collectives/rank{rank:05d}.parquet",
            says=f"collectives of rank {rank}: times and sizes",
            content=redact_collectives(run, rank, names),
        )
        for rank in ranks[:_MAX_TABLES]
    ]
    rest = len(ranks) - len(parts)
    return parts, [f"collectives of {rest} more ranks"] if rest else []


def _redact_doctor(doctor: Doctor, names: StandIns) -> dict[str, Any]:
    """Redact the texts of checks, which may contain paths; the names of checks are zprof's own."""
    texts = ("found", "without", "remedy")
    checks = [
        {key: names.scrubbed(text) if key in texts else text for key, text in to_tree(check).items()}
        for check in doctor.checks
    ]
    return {**to_tree(doctor), "checks": checks}


def _collect_manifests(run: Run) -> dict[str, Any]:
    ranks = [_rank_manifest(manifest) for manifest in run.rank_manifests.values()]
    return {**asdict(run.manifest), "ranks": ranks, "name": run.path.resolve().name}


def _rank_manifest(manifest: RankManifest) -> dict[str, Any]:
    whole = asdict(manifest)
    rows = {name: file["rows"] for name, file in whole.pop("files").items()}
    return {**whole, "files": rows}


def _make_index(parts: Sequence[Part], left_out: Sequence[str]) -> Part:
    tree = {
        "schema": SCHEMA,
        "zprof_version": __version__,
        "parts": {part.name: part.says for part in parts},
        "left_out": list(left_out),
    }
    return Part(name="bundle.json", says="this list", content=_json(tree))


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode("ascii")


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
#: Texts of closed sets; any other value is replaced.
_TEXT_COLUMNS = ("kind", "dtype", "method")


def redact_collectives(run: Run, rank: int, names: StandIns) -> bytes:
    """Return a rank's redacted collectives as a Parquet file.

    Raises:
        BadInput: the table is damaged.
    """
    table = run.table(rank, "collectives")
    columns = {name: table.column(name) for name in _PLAIN_COLUMNS}
    columns |= {name: _map_texts(table.column(name), names.scrubbed) for name in _TEXT_COLUMNS}
    columns["group"] = _map_texts(table.column("group"), lambda text: redact_group(text, names))
    columns["unit"] = _map_texts(table.column("unit"), lambda text: names.of(text, "module"))
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written, compression="zstd")
    return written.getvalue()


def _map_texts(column: pa.ChunkedArray, change: Callable[[str], str]) -> pa.Array:
    """Change each distinct text of a dictionary column once."""
    encoded = column.unify_dictionaries().combine_chunks()
    words = pa.array([change(word) for word in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, words).cast(pa.string())
