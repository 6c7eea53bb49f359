"""Run one rank of a recorded training with the reference engine.

The engine and the recorder are independent of each other. This module passes engine facts to the recorder,
like a user's training program.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from zprof.base.formatting import format_ns, format_rate
from zprof.collectors.record.recorder import Recorder, record
from zprof.collectors.record.schedule import steps
from zprof.integrations.reference_job import ReferenceJob, ReferenceJobResult
from zprof.model.training import TrainingFacts
from zprof.process.memory_limit import find_exhausted_limit, is_memory_shortage
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.plants import find_plant
from zprof.reference_engine.program.train_config import TrainConfig
from zprof.reference_engine.train import train

_POLL_S = 0.01


class RecordingObserver:
    """Records the observed training; the recording ends with ``stack``, even if training fails."""

    def __init__(self, job: ReferenceJob, config: TrainConfig, stack: ExitStack) -> None:
        self._job, self._config, self._stack = job, config, stack
        self._recorder: Recorder | None = None
        self.is_started = False

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        """Start recording."""
        self.is_started = True
        job = self._job
        if job.run is None:
            return
        recorder = record(
            job.run,
            model=model,
            optimizer=optimizer,
            steps=steps(skip=job.skip_steps, memory=job.memory_steps, time=job.time_steps),
            training=make_training_facts(model, self._config),
        )
        self._recorder = self._stack.enter_context(recorder)

    def step_done(self, step: int, loss: float) -> None:
        """Mark the end of a step."""
        if self._recorder is not None:
            self._recorder.step()

    def finished(self) -> None:
        """End the recording while the process group still exists."""
        self._stack.close()


def make_training_facts(model: ZeroModel, config: TrainConfig) -> TrainingFacts:
    """Convert the engine's facts to the recorder's training facts."""
    facts = model.facts
    return TrainingFacts(
        engine="reference",
        stage=facts.stage,
        parameters=facts.parameters,
        shard_ranks=facts.shard_ranks,
        parameter_bytes=facts.parameter_bytes,
        gradient_bytes=facts.gradient_bytes,
        optimizer_state_bytes=facts.optimizer_state_bytes,
        communication_bytes=facts.communication_bytes,
        reduction_bytes=facts.reduce_bytes,
        padding_elements=facts.padding_elements,
        step_counters=facts.step_counters,
        micro_batches=config.zero.micro_batches,
        model_parallel_ranks=config.mp,
        samples_per_step=config.batch,
        tokens_per_step=config.tokens_per_step(facts.shard_ranks),
        modelled=describe_modelled_parts(config),
    )


def describe_modelled_parts(config: TrainConfig) -> tuple[str, ...]:
    """Describe the modelled and planted parts of a run for its report."""
    descriptions = []
    if config.plant is not None:
        descriptions.append(f"planted {config.plant}: {find_plant(config.plant).effect}")
    if config.link is not None:
        latency = f", latency {format_ns(config.link.latency_s * 1e9)}" if config.link.latency_s else ""
        slowest = max(config.link.rank_factors.values(), default=1.0)
        factor = f", one rank {slowest:g} times slower" if slowest > 1 else ""
        descriptions.append(f"link of {format_rate(config.link.bandwidth_bytes_per_s)}{latency}{factor}")
    if config.compute is not None:
        compute = config.compute
        forward, backward = (format_ns(s * 1e9) for s in (compute.forward_s, compute.backward_s))
        descriptions.append(f"compute of {forward} forward and {backward} backward a block")
        delay = format_ns(compute.straggler_s * 1e9)
        if compute.straggler_rank is not None:
            descriptions.append(f"straggler: rank {compute.straggler_rank} late by {delay} per step")
        if compute.straggler_rotates:
            descriptions.append(f"straggler: a different rank in each step, late by {delay}")
    return tuple(descriptions)


def main() -> int:
    """Train the job given as the first argument; return 2 if its settings are rejected."""
    job = ReferenceJob.from_json(sys.argv[1])
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args([], argparse.Namespace(**job.options))
    with ExitStack() as stack:
        config = make_config(options)
        observer = RecordingObserver(job, config, stack)
        try:
            with meet_ranks(job.meeting, config.timeout_s):
                losses = train(config, observer)
        except ValueError as error:
            if observer.is_started:
                raise
            return _write_outcome(job, ReferenceJobResult(refused=str(error)), code=2)
        except Exception as error:
            if is_memory_shortage(error):
                return _write_outcome(job, ReferenceJobResult(refused="a rank ran out of memory"), code=2)
            if limit := find_exhausted_limit(error):
                return _write_outcome(
                    job, ReferenceJobResult(refused=f"a rank was stopped by a system limit: {limit}"), code=2
                )
            raise
    return _write_outcome(job, ReferenceJobResult(losses=tuple(losses)), code=0)


@contextmanager
def meet_ranks(port_file: Path | None, timeout_s: float) -> Iterator[None]:
    """Open the process group for the block, at a port assigned to rank 0 by the system.

    Without a file, the engine opens the group at the address in the environment.
    """
    if port_file is None:
        yield
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    open_store: Any = partial(
        getattr(dist, "TCPStore"),  # noqa: B009, without which mypy does not know it
        "127.0.0.1",
        world_size=world_size,
        timeout=timeout,
    )
    if rank == 0:
        store = open_store(port=0, is_master=True, wait_for_workers=False)
        part = port_file.with_suffix(".part")
        part.write_text(str(store.port))
        part.replace(port_file)
    else:
        deadline_s = time.monotonic() + timeout_s
        while not port_file.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError("rank 0 has not opened its port")
            time.sleep(_POLL_S)
        store = open_store(port=int(port_file.read_text()))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _write_outcome(job: ReferenceJob, outcome: ReferenceJobResult, *, code: int) -> int:
    """Write the outcome of rank 0, or of any rank that rejects the settings; return ``code``."""
    if job.outcome is not None and (code or os.environ.get("RANK", "0") == "0"):
        outcome.write(job.outcome)
    return code


if __name__ == "__main__":
    sys.exit(main())
