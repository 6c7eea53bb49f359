"""What watching memory costs a training step: zprof's two modes beside torch's own tools, in one process."""
