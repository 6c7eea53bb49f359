"""The manifest: facts of the whole run, and beside them what each rank wrote.

``manifest.json`` holds what every rank knows alike; ``rankNNNNN/rank.json`` holds what only that rank
knows.  A reader merges them, so no rank ever waits for another.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.schema import RUN_SCHEMA

MANIFEST_NAME = "manifest.json"
RANK_NAME = "rank.json"
STEPS_NAME = "steps.jsonl"
_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Facts that every rank of the run knows alike."""

    schema: str = RUN_SCHEMA
    zprof_version: str
    created_ns: int
    world_size: int
    backend: str
    device: str
    training: TrainingFacts
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A table on disk, as its writer saw it."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankManifest:
    """What one rank recorded.  ``status`` is recording until its tables are on disk."""

    rank: int
    status: str
    host: str
    memory_steps: tuple[int, ...] = ()
    time_steps: tuple[int, ...] = ()
    files: dict[str, TableFile] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


def rank_folder(run: Path, rank: int) -> Path:
    """Where a rank writes."""
    return run / f"rank{rank:05d}"


def to_json(manifest: RunManifest | RankManifest) -> str:
    """The manifest as indented JSON."""
    return json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"


def read_run_manifest(run: Path) -> RunManifest:
    """Read and check ``manifest.json``.

    Raises:
        BadInput: no such run, not a run, damaged, or written by a newer zprof.
    """
    path = run / MANIFEST_NAME
    raw = _read_object(path)
    _check_schema(raw.get("schema"), path)
    try:
        training = TrainingFacts(**_known(TrainingFacts, raw["training"]))
        values = _known(RunManifest, raw) | {"training": _with_tuples(training)}
        return RunManifest(**values)
    except (KeyError, TypeError) as error:
        raise BadInput(f"{path}: not a run manifest ({error})", hint="record the run again") from None


def read_rank_manifest(run: Path, rank: int) -> RankManifest:
    """Read ``rankNNNNN/rank.json``; raises BadInput where it is damaged."""
    path = rank_folder(run, rank) / RANK_NAME
    raw = _read_object(path)
    try:
        values = _known(RankManifest, raw)
        values["files"] = {name: TableFile(**_known(TableFile, f)) for name, f in raw["files"].items()}
        values["gaps"] = tuple(Gap(**_known(Gap, gap)) for gap in raw["gaps"])
        values["memory_steps"] = tuple(raw["memory_steps"])
        values["time_steps"] = tuple(raw["time_steps"])
        return RankManifest(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not a rank manifest ({error})", hint="record the run again") from None


def _with_tuples(training: TrainingFacts) -> TrainingFacts:
    values = {f.name: getattr(training, f.name) for f in fields(training)}
    return TrainingFacts(**values | {"modelled": tuple(training.modelled)})


def _known(kind: type, raw: Any) -> dict[str, Any]:
    """Keys that this version knows: a newer minor version may have added some."""
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, found {type(raw).__name__}")
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise BadInput(f"{path}: larger than a manifest can be", hint="record the run again")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", hint="give the folder that a recording made") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not valid JSON"
        raise BadInput(f"{path}: cannot be read ({reason})", hint="record the run again") from None
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: not a JSON object", hint="record the run again")
    return raw


def _check_schema(schema: object, path: Path) -> None:
    if schema == RUN_SCHEMA:
        return
    if isinstance(schema, str) and schema.startswith("zprof.run/"):
        raise BadInput(
            f"{path}: schema {schema[:40]!r}, this zprof reads {RUN_SCHEMA!r}",
            hint="upgrade zprof, or record the run again",
        )
    raise BadInput(f"{path}: not a zprof run", hint="give the folder that a recording made")
