"""Load checkpoints: every rank reads what it needs, no matter which rank wrote it."""

import os
import warnings
from collections.abc import Mapping

import torch
from torch.distributed.checkpoint import state_dict_loader

from zprof.reference_engine.checkpoints.dcp import IndexedReader, PartsLoadPlanner, RankGroup, read_metadata
from zprof.reference_engine.checkpoints.manifest import (
    CheckpointFolder,
    Manifest,
    check_file,
    check_matches_model,
    read_manifest,
)
from zprof.reference_engine.checkpoints.saved_tensors import (
    filter_known_states,
    iter_persistent_buffers,
    list_parts_to_load,
    make_buffer_parts,
    make_generator_parts,
    read_generator_states,
    set_generator_states,
)
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer


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
