"""Where a run may be written."""

import shutil
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.run.manifest import read_run_manifest


def clear_target(path: Path, *, force: bool) -> None:
    """Make room for a run at ``path``.

    Raises:
        BadInput: a run is there and ``force`` is not given, or something else is there.
    """
    if not path.exists():
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    try:
        read_run_manifest(path)
    except BadInput:
        raise BadInput(f"{path}: exists and is not a run", hint="name another folder") from None
    if not force:
        raise BadInput(f"{path}: a run is there already", hint="--force overwrites it")
    shutil.rmtree(path)
