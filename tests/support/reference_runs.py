"""Recordings of the reference engine on forked ranks, which do not import torch anew."""

import argparse
from pathlib import Path

from tests.support.forked_ranks import run_forked
from zprof.integrations.reference_job import ReferenceJob
from zprof.reference_engine.program.options import add_arguments
from zprof.run.reader import Run, load


def parse_options(options: str) -> argparse.Namespace:
    """Options of the training program, as ``zprof train`` has them."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(options.split())


def record_reference(folder: Path, options: str, ranks: int, **steps: int) -> Run:
    """Train on so many ranks; ``steps``: how many to skip and to record, by the names of ``ReferenceJob``."""
    run = folder / "run.zprof"
    job = ReferenceJob(world_size=ranks, options=vars(parse_options(options)), run=run, **steps)
    for rank in run_forked(["-m", "zprof.integrations.reference_rank", job.to_json()], ranks, folder):
        assert rank.code == 0, rank.lines
    loaded = load(run)
    assert len(loaded.ranks) == ranks
    return loaded
