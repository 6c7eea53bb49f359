"""Save checkpoints: every rank writes its shards, and the folder appears when all ranks have finished.

Save only between steps: gradients are not part of a checkpoint.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from zprof.reference_engine.checkpoints.dcp import METADATA, PartsSavePlanner, RankGroup
from zprof.reference_engine.checkpoints.manifest import (
    CheckpointFolder,
    Manifest,
    compute_checksums,
    describe_buffers,
    describe_parameters,
    write_manifest,
)
from zprof.reference_engine.checkpoints.saved_tensors import (
    TensorPart,
    iter_persistent_buffers,
    list_parts_to_save,
    make_buffer_parts,
    make_generator_parts,
    read_generator_states,
)
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer

Progress = Mapping[str, int | float | str]


def save_checkpoint(
    path: str | os.PathLike[str],
    model: ZeroModel,
    optimizer: ZeroOptimizer,
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> None:
    """Save weights, optimizer state, buffers and random generators to a folder (collective).

    All ranks must share a file system.  ``progress`` is the caller's own data (step, epoch, position in the
    data set); it must be equal on all ranks and is returned by :func:`load_checkpoint`.  An existing
    checkpoint is replaced only with ``overwrite``, and stays loadable until the new one is complete and on
    disk; if a rank dies before that, it is unchanged.

    Raises:
        ValueError: the folder exists, or ``progress`` contains anything but numbers and strings.
        RuntimeError: a rank could not write or has exited; all other ranks raise the same one-line message.
    """
    folder = CheckpointFolder(path)
    ranks = RankGroup(model, f"checkpoint {folder.path} was not saved")
    ranks.run_on_all(lambda: _check_progress(progress or {}))
    model.synchronize()
    ranks.run_on_first(lambda: folder.start_draft(overwrite=overwrite))
    try:
        _write_checkpoint(folder, ranks, model, optimizer, progress or {})
    except BaseException:
        if ranks.rank == 0:
            folder.abandon()
        raise


def check_checkpoint_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Check before training that :func:`save_checkpoint` can write to ``path``; not collective.

    Raises:
        ValueError: it cannot; the one-line message has the path and the reason.
    """
    folder = CheckpointFolder(path)
    try:
        folder.check(overwrite=overwrite)
    except ValueError as error:
        raise ValueError(f"checkpoint {folder.path} cannot be saved: {error}") from None


def _write_checkpoint(
    folder: CheckpointFolder,
    ranks: RankGroup,
    model: ZeroModel,
    optimizer: ZeroOptimizer,
    progress: Progress,
) -> None:
    planner = PartsSavePlanner(_list_parts(model, optimizer, ranks))
    writer = FileSystemWriter(folder.draft, overwrite=False)
    ranks.call(lambda: _dcp_save(writer, planner, ranks))
    written = ranks.collect(lambda: _checksum_written(folder, ranks.rank))
    scalars = optimizer.scalar_state()
    steps = ranks.collect(lambda: scalars["steps"])  # each rank has only the parameters that it updates
    policy = model.units[0].policy
    manifest = Manifest(
        stage=policy.shard_optimizer + policy.shard_gradients + policy.shard_parameters,
        data_parallel=model.comm.world_size,
        model_parallel=1 if model.mp is None else model.mp.world_size,
        optimizer={**scalars, "steps": {name: count for counts in steps for name, count in counts.items()}},
        progress=dict(progress),
        parameters=describe_parameters(model),
        buffers=describe_buffers(model),
        files={name: checksum for checksums in written for name, checksum in checksums.items()},
    )

    def publish() -> None:
        write_manifest(folder.draft, manifest)
        folder.publish()

    ranks.run_on_first(publish)


def _list_parts(model: ZeroModel, optimizer: ZeroOptimizer, ranks: RankGroup) -> Iterator[TensorPart]:
    yield from list_parts_to_save(model, optimizer)
    yield from make_generator_parts(read_generator_states(model, ranks.rank))
    if ranks.rank == 0:
        yield from make_buffer_parts(
            {name: buffer.contiguous() for name, buffer in iter_persistent_buffers(model.module)}
        )


def _checksum_written(folder: CheckpointFolder, rank: int) -> dict[str, dict[str, int]]:
    index = compute_checksums(folder.draft, METADATA) if rank == 0 else {}
    return compute_checksums(folder.draft, f"__{rank}_*") | index


def _dcp_save(writer: FileSystemWriter, planner: PartsSavePlanner, ranks: RankGroup) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single rank, as intended
        state_dict_saver.save(
            {}, storage_writer=writer, planner=planner, process_group=ranks.group, no_dist=ranks.alone
        )


def _check_progress(progress: Mapping[str, Any]) -> None:
    for key, value in progress.items():
        if not isinstance(key, str) or not isinstance(value, int | float | str):
            raise ValueError(
                f"progress[{key!r}] is {value!r}; keys must be strings, values numbers or strings"
            )
