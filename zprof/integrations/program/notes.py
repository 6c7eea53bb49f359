"""What is said at the end of a recording, on one line each: where it is, or what was not recorded and why."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.run.manifest import RANK_NAME, RankManifest, read_rank_manifest, read_run_manifest

_CUT_SHORT = "recording cut short"


def all_notes(told: Iterable[str], run: Path, began_ns: int) -> Iterator[str]:
    """What the recorded processes told, and what became of a recording that began at ``began_ns``.

    What lies at ``run`` from before is none of it.
    """
    told = list(told)
    yield from told
    rank = _first_rank(run, began_ns)
    if rank is None:
        if not told:
            yield "nothing was recorded: no optimizer of torch has stepped"
        return
    reasons = [gap.reason for gap in rank.gaps if gap.what == _CUT_SHORT]
    if rank.status in ("recording", "partial"):
        reasons = [f"rank {rank.rank} was ended before it could write the rest"]
    for reason in reasons:
        yield f"{run} is cut short: {reason}"
    yield f"wrote {run}; zprof report {shlex.quote(str(run))}"


def _first_rank(run: Path, began_ns: int) -> RankManifest | None:
    try:
        manifest = read_run_manifest(run)
        if manifest.created_ns < began_ns:
            return None
        folders = sorted(path.parent.name for path in run.glob(f"rank[0-9]*/{RANK_NAME}"))
        ranks = [read_rank_manifest(run, int(name.removeprefix("rank"))) for name in folders]
    except (BadInput, ValueError):
        return None
    return next((rank for rank in ranks if rank.run_id == manifest.run_id), None)
