"""Saving: every rank writes what it owns, and the folder appears when all have.

Between steps only: gradients are not part of a checkpoint.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from zprof.reference_engine.checkpoints.extras import (
    buffer_parts,
    buffers_of,
    generator_parts,
    generator_states,
)
from zprof.reference_engine.checkpoints.folder import CheckpointFolder
from zprof.reference_engine.checkpoints.manifest import Manifest, checksums, write_manifest
from zprof.reference_engine.checkpoints.parts import Engine, Numbers, Part, parts_to_save
from zprof.reference_engine.checkpoints.planners import PartsSavePlanner
from zprof.reference_engine.checkpoints.ranks import Ranks
from zprof.reference_engine.checkpoints.storage import METADATA
from zprof.reference_engine.checkpoints.table import buffers_table, parameters_table

Progress = Mapping[str, int | float | str]


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Engine,
    optimizer: Numbers,
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> None:
    """Save weights, optimizer state, buffers and random generators into a new folder, on all ranks at once.

    All ranks must see the same file system.  ``progress`` is the caller's own (step, epoch, position in the
    data), equal on all ranks, and comes back from :func:`load_checkpoint`.  An existing checkpoint is
    replaced only with ``overwrite``, and stays loadable until the new one is complete and on disk; a rank
    that dies before that leaves it as it was.

    Raises:
        ValueError: the folder exists, or ``progress`` holds something else than numbers and strings.
        RuntimeError: a rank could not write or is gone; the same one line on all ranks that are left.
    """
    folder = CheckpointFolder(path)
    ranks = Ranks(model, f"checkpoint {folder.path} was not saved")
    ranks.together(lambda: _check_progress(progress or {}))
    model.synchronize()
    ranks.on_first(lambda: folder.begin(overwrite=overwrite))
    try:
        _write(folder, ranks, model, optimizer, progress or {})
    except BaseException:
        if ranks.rank == 0:
            folder.abandon()
        raise


def check_checkpoint_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Say before the training what :func:`save_checkpoint` would refuse after it; every rank by itself.

    Raises:
        ValueError: one line that names the path and says what is wrong with it.
    """
    folder = CheckpointFolder(path)
    try:
        folder.check(overwrite=overwrite)
    except ValueError as error:
        raise ValueError(f"checkpoint {folder.path} cannot be saved: {error}") from None


def _write(
    folder: CheckpointFolder, ranks: Ranks, model: Engine, optimizer: Numbers, progress: Progress
) -> None:
    planner = PartsSavePlanner(_parts(model, optimizer, ranks))
    writer = FileSystemWriter(folder.draft, overwrite=False)
    ranks.call(lambda: _dcp_save(writer, planner, ranks))
    written = ranks.collect(lambda: _written(folder, ranks.rank))
    numbers = optimizer.scalar_state()
    steps = ranks.collect(lambda: numbers["steps"])  # a rank knows those of the parameters that it updates
    manifest = Manifest(
        stage=_stage(model),
        data_parallel=model.comm.world_size,
        model_parallel=1 if model.mp is None else model.mp.world_size,
        optimizer={**numbers, "steps": {name: count for own in steps for name, count in own.items()}},
        progress=dict(progress),
        parameters=parameters_table(model),
        buffers=buffers_table(model),
        files={name: found for one_rank in written for name, found in one_rank.items()},
    )

    def publish() -> None:
        write_manifest(folder.draft, manifest)
        folder.publish()

    ranks.on_first(publish)


def _parts(model: Engine, optimizer: Numbers, ranks: Ranks) -> Iterator[Part]:
    yield from parts_to_save(model, optimizer)
    yield from generator_parts(generator_states(model, ranks.rank))
    if ranks.rank == 0:
        yield from buffer_parts({name: buffer.contiguous() for name, buffer in buffers_of(model.module)})


def _written(folder: CheckpointFolder, rank: int) -> dict[str, dict[str, int]]:
    index = checksums(folder.draft, METADATA) if rank == 0 else {}
    return checksums(folder.draft, f"__{rank}_*") | index


def _dcp_save(writer: FileSystemWriter, planner: PartsSavePlanner, ranks: Ranks) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one rank alone, as meant
        state_dict_saver.save(
            {}, storage_writer=writer, planner=planner, process_group=ranks.group, no_dist=ranks.alone
        )


def _stage(model: Engine) -> int:
    policy = model.units[0].policy
    return policy.shard_optimizer + policy.shard_gradients + policy.shard_parameters


def _check_progress(progress: Mapping[str, Any]) -> None:
    for key, value in progress.items():
        if not isinstance(key, str) or not isinstance(value, int | float | str):
            raise ValueError(
                f"progress[{key!r}] is {value!r}; it must be a number or a string under a string"
            )
