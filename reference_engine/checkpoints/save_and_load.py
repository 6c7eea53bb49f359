"""Save and load checkpoints: every rank writes its shards, and reads what it needs, no matter who wrote it.

The folder appears when all ranks have finished.  Save only between steps: gradients are not part of a
checkpoint.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from zprof.reference_engine.checkpoints.dcp import (
    METADATA,
    IndexedReader,
    PartsLoadPlanner,
    PartsSavePlanner,
    RankGroup,
    read_metadata,
)
from zprof.reference_engine.checkpoints.manifest import (
    CheckpointFolder,
    Manifest,
    check_file,
    check_matches_model,
    compute_checksums,
    describe_buffers,
    describe_parameters,
    read_manifest,
    write_manifest,
)
from zprof.reference_engine.checkpoints.saved_tensors import (
    TensorPart,
    filter_known_states,
    iter_persistent_buffers,
    list_parts_to_load,
    list_parts_to_save,
    make_buffer_parts,
    make_generator_parts,
    read_generator_states,
    set_generator_states,
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


def load_checkpoint(
    path: str | os.PathLike[str], model: ZeroModel, optimizer: ZeroOptimizer
) -> dict[str, int | float | str]:
    """Restore a checkpoint's weights and state (collective), and return the caller's progress.

    The number of ranks, the stage, the units and the dtype may differ from the saved ones.  fp32 master
    weights and moments are restored exactly; 16-bit parameters are rounded from them; frozen parameters are
    converted.  Gradients are dropped.  torch's random generators are restored if the number of data-parallel
    ranks is the same.

    Loading runs no code from the checkpoint.  DCP's index is a pickle, which is read by an unpickler that
    accepts only the index's record types; tensors are loaded as weights only.  This applies only to this
    function: DCP's own reader, and any other program that opens the folder, runs what the pickle contains.

    Raises:
        ValueError: it is not a checkpoint, is damaged, or does not match the model; nothing was changed.
        RuntimeError: it could not be read, or a rank has exited; the model may be partly changed.
    """
    folder = CheckpointFolder(path)
    ranks = RankGroup(model, f"checkpoint {folder.path} cannot be loaded")
    ranks.run_on_first(folder.recover)
    manifest = ranks.run_on_all(lambda: _open_checkpoint(folder, ranks, model, optimizer))
    metadata = ranks.run_on_all(lambda: read_metadata(folder.path, manifest.files))
    model.synchronize()
    for unit in model.units:
        unit.release()
    buffers = {
        name: torch.empty_like(buffer).contiguous() for name, buffer in iter_persistent_buffers(model.module)
    }
    has_same_ranks = manifest.data_parallel == model.comm.world_size
    states = read_generator_states(model, ranks.rank) if has_same_ranks else {}
    states = filter_known_states(states, metadata)
    parts = [
        *list_parts_to_load(model, optimizer),
        *make_buffer_parts(buffers),
        *make_generator_parts(states),
    ]
    reader, planner = IndexedReader(folder.path, metadata), PartsLoadPlanner(parts)
    ranks.call(lambda: _dcp_load(reader, planner, ranks))
    _apply_loaded_state(model, optimizer, manifest, buffers)
    set_generator_states(model, states)
    return dict(manifest.progress)


def _open_checkpoint(
    folder: CheckpointFolder, ranks: RankGroup, model: ZeroModel, optimizer: ZeroOptimizer
) -> Manifest:
    manifest = read_manifest(folder.path)
    saved_groups, groups = len(manifest.optimizer["groups"]), len(optimizer.param_groups)
    if saved_groups != groups:
        raise ValueError(f"it has {saved_groups} parameter groups, but the optimizer has {groups}")
    check_matches_model(manifest, model)
    for name in sorted(manifest.files)[ranks.rank :: ranks.size]:  # each file is checked by one rank
        check_file(folder.path, name, manifest.files[name])
    return manifest


def _apply_loaded_state(
    model: ZeroModel,
    optimizer: ZeroOptimizer,
    manifest: Manifest,
    buffers: Mapping[str, torch.Tensor],
) -> None:
    with torch.no_grad():
        for name, buffer in iter_persistent_buffers(model.module):
            buffer.copy_(buffers[name])
        for unit in model.units:
            unit.store_weights()
            unit.bump_versions()
            if not unit.policy.shard_parameters and (unit.policy.shard_optimizer or not unit.trainable):
                unit.gather_updated()  # each rank has read only its own shard
                unit.wait()
    # Convert lists back to tuples, which JSON does not have, such as a group's betas.
    groups = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in group.items()}
        for group in manifest.optimizer["groups"]
    ]
    optimizer.load_scalar_state({**manifest.optimizer, "groups": groups})
    optimizer.zero_grad()


def _dcp_load(reader: IndexedReader, planner: PartsLoadPlanner, ranks: RankGroup) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single rank, as intended
        state_dict_loader.load(
            {}, storage_reader=reader, planner=planner, process_group=ranks.group, no_dist=ranks.alone
        )
