"""What is said at the end of a recording, on one line each: where it is, or what was not recorded and why."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.run.manifest import RANK_NAME, RankManifest, read_rank_manifest, read_run_manifest

_CUT_SHORT = "recording cut short"


def closing_notes(run: Path, *, began_ns: int) -> Iterator[str]:
    """About a recording that began at ``began_ns``; what lies there from before is none of it."""
    rank = _first_rank(run, began_ns)
    if rank is None:
        yield "nothing was recorded: no optimizer of torch has stepped"
        return
    for gap in rank.gaps:
        if gap.what == _CUT_SHORT:
            yield f"{run} is cut short: {_reason(gap)}"
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


def _reason(gap: Gap) -> str:
    return gap.reason
