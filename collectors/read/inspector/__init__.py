"""Read the files of NCCL's Inspector plugin: one JSON object per operation, communicator and rank."""
