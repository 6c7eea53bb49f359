"""Save and load sharded checkpoints through torch.distributed.checkpoint (DCP).

A checkpoint of any stage and number of ranks can be loaded into any other.

    save_checkpoint("run/step100", model, optimizer, progress={"step": 100}, overwrite=True)
    progress = load_checkpoint("run/step100", model, optimizer)

A checkpoint is a DCP folder with an additional ``zero.json`` (see :mod:`.manifest`).  Names and shapes are
the same as in the user's module, so that other DCP readers can load it too:

    model.<name>                        fp32 master weights; frozen parameters and buffers in their own dtype
    optimizer.state.<name>.exp_avg      fp32; and exp_avg_sq
    rng.<rank>.cpu, rng.<rank>.cuda     torch's random generators
"""

from zprof.reference_engine.checkpoints.save_and_load import (
    check_checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)

__all__ = ["check_checkpoint_path", "load_checkpoint", "save_checkpoint"]
