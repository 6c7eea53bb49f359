"""The baselines of tests: ``zprof-baselines/<test>.json`` beside the test's file, one file a test.

No two tests write the same file, so that workers in parallel need no lock.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zprof.checks.baseline import read_baseline, to_json
from zprof.model.baseline import Baseline
from zprof.model.errors import BadInput

FOLDER = "zprof-baselines"
UPDATE = "--zprof-update-baseline"

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
#: With the test file's name and the digest a file name stays below what file systems take, 255 bytes.
_LONGEST = 100


def baseline_path(test_file: Path, names: Sequence[str]) -> Path:
    """Where the baseline of a test is; ``names`` of its classes and its own: ``["TestB", "test_c[1]"]``.

    A name that a file cannot have is made fit, and told apart by a digest of the whole.
    """
    name = "::".join(names)
    plain = name.replace("::", ".")
    fit = _UNFIT.sub("-", plain).strip("-")[:_LONGEST]
    if fit != plain:
        fit = f"{fit}-{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:8]}"
    return test_file.parent / FOLDER / f"{test_file.stem}.{fit}.json"


def kept(path: Path) -> Baseline | None:
    """The baseline that is there; None on the first run.

    Raises:
        BadInput: what is there is none.
    """
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return read_baseline(path)
    except BadInput as error:
        raise BadInput(error.message, hint=f"pytest {UPDATE} writes it again") from None


def keep(baseline: Baseline, path: Path) -> None:
    """Write it, whole or not at all.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:_LONGEST]}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(to_json(baseline))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="is it writable?") from None
