"""CUDA memory snapshots (``torch.cuda.memory._dump_snapshot``), read without torch and without trust."""
