"""Put the files of a run in place, complete or not at all, without pyarrow."""

import hashlib
import os
from pathlib import Path

from zprof.run.manifest import RANK_NAME, RankManifest, rank_folder, to_json


def write_atomically(target: Path, content: bytes) -> None:
    """Write a small file so that readers see either the old or the new content, never a mix."""
    temporary = get_temporary_path(target)
    try:
        temporary.write_bytes(content)
        sync_and_rename(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def get_temporary_path(target: Path) -> Path:
    """Return the path under which a file is written until it is complete."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def sync_and_rename(temporary: Path, target: Path) -> str:
    """Fsync a complete file, rename it to its final name, and return its SHA-256."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary.rename(target)
    return digest


def place_rank(run: Path, provisional: Path, manifest: RankManifest) -> None:
    """Move tables that were written before their rank was known into that rank's folder of ``run``.

    Raises:
        OSError: it cannot be moved.
    """
    folder = rank_folder(run, manifest.rank)
    provisional.rename(folder)
    (folder / RANK_NAME).write_text(to_json(manifest), encoding="utf-8")
