"""Make the CUDA memory snapshots of docs/memory.md: a generated training job before a fix, and after it.

Program and allocator are those of benchmarks/snapshot_truth, so no GPU is needed and no file is committed.
"""

import pickle
from dataclasses import replace
from pathlib import Path

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.frames import PythonFrame
from benchmarks.snapshot_truth.generator import record_program
from benchmarks.snapshot_truth.model_shapes import ModelShape
from benchmarks.snapshot_truth.variants import ProgramOptions

#: A GPT of 98 million parameters, in fp32.
_MODEL = ModelShape(
    layers=12,
    heads=12,
    kv_heads=12,
    head_dim=64,
    ffn=3072,
    vocab=8192,
    seq=1024,
    batch=8,
    is_gated=False,
    has_bias=True,
    has_layer_norm=True,
    has_positions=True,
    is_tied=False,
    has_flash=False,
    has_dropout=False,
    buffers="none",
)
_BEFORE = ProgramOptions(
    variant="adamw_foreach", model=_MODEL, optimizer="adamw_foreach", birth="to", steps=3, micro_batches=1
)
_PROGRAMS = {"before.pickle": _BEFORE, "after.pickle": replace(_BEFORE, is_checkpointed=True)}
_SCRIPT = "/workspace/gpt/train.py"
_CODE = Codebase(
    style="script",
    main=(PythonFrame(_SCRIPT, 402, "<module>"), PythonFrame(_SCRIPT, 371, "main")),
    setup=(PythonFrame(_SCRIPT, 88, "build_model"),),
    loop=(PythonFrame(_SCRIPT, 240, "train"),),
    micro_step=(PythonFrame(_SCRIPT, 190, "train_step"),),
    model_file="/workspace/gpt/model.py",
    own_file="/workspace/gpt/layers.py",
    model_class="Transformer",
    has_own_layers=False,
)
#: The program recorded from its second step on: parameters and optimizer state are older than the history.
_FIRST_STEP = 1
_SEED = 1


def write_snapshots(folder: Path) -> None:
    """Write before.pickle and after.pickle into a folder."""
    for name, options in _PROGRAMS.items():
        snapshot = record_program(options, _CODE, first_step=_FIRST_STEP, seed=_SEED)
        (folder / name).write_bytes(pickle.dumps(snapshot))
