"""The settings of the reference engine and its model that a planned job stands for."""

from dataclasses import dataclass

import torch

from zprof.model.errors import BadInput
from zprof.model.planning.job import ElementBytes, Job
from zprof.reference_engine.activations import ActivationConfig
from zprof.reference_engine.config import Keep, ZeroConfig
from zprof.reference_engine.program.gpt import GPTConfig

#: A step of more micro-batches has the same peak: from the second on nothing new is kept.
MOST_MICRO_BATCHES = 2
_DTYPES = {4: torch.float32, 2: torch.bfloat16}
#: AdamW's two moments, and fp32 master weights beside parameters of 2 bytes.
_STATE_BYTES = {4: 8, 2: 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One stage of a job in the engine.  ``sequence``, ``samples``: of one micro-batch of one rank."""

    zero: ZeroConfig
    activations: ActivationConfig
    samples: int
    sequence: int


def settings_of(job: Job, stage: int) -> Settings:
    """The engine as the job wants it.

    Raises:
        BadInput: the engine has no such precision, or the batch is not known.
    """
    samples, sequence = job.batch.samples, job.batch.sequence
    if samples is None or sequence is None:
        raise BadInput("--verify runs a step and needs a batch", hint="add --micro-batch and --sequence")
    wanted, residual, overlap = job.element_bytes, job.residual, job.overlap
    dtype = _dtype(wanted)
    zero = ZeroConfig(
        stage=stage,
        dtype=dtype,
        reduce_dtype=_DTYPES[wanted.reduced],
        micro_batches=min(job.batch.micro_batches, MOST_MICRO_BATCHES),
        forward_prefetch=overlap.prefetch,
        backward_prefetch=overlap.prefetch,
        keep_after_forward=Keep.LAST if overlap.keep_last else Keep.NONE,
        reduce_buckets=overlap.reductions_in_flight,
        constant_buffers=residual.constant_buffer_elements,
        defragment=residual.defragment,
        alignment=overlap.alignment_elements,
    )
    checkpoint = residual.checkpointing or residual.partition
    activations = ActivationConfig(
        checkpoint=checkpoint,
        partition=residual.partition,
        contiguous=residual.defragment and checkpoint,
    )
    return Settings(zero=zero, activations=activations, samples=samples, sequence=sequence)


def gpt_of(job: Job) -> GPTConfig:
    """The model of the job's shape.

    Raises:
        BadInput: there is none, or it lacks a size.
    """
    shape = job.shape
    if shape is None:
        raise BadInput(
            "--verify needs a model that can be built, and only a number of parameters is known",
            hint="give --layers, --hidden and --vocabulary, a --preset, or --model module:function",
        )
    if not shape.vocabulary:
        raise BadInput("--verify builds the model and needs its vocabulary", hint="add --vocabulary")
    try:
        return GPTConfig(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads or heads_of(shape.hidden),
            vocabulary=shape.vocabulary,
            context=shape.context or job.batch.sequence or 1,
            tied=shape.tied,
        )
    except ValueError as error:
        raise BadInput(f"--verify cannot build the model: {error}", hint="change that size") from None


def heads_of(hidden: int) -> int:
    """Heads of a width where none are given: 64 wide as GPT-2's, else the most that are not narrower."""
    return next(heads for heads in range(max(hidden // 64, 1), 0, -1) if hidden % heads == 0)


def _dtype(wanted: ElementBytes) -> torch.dtype:
    state = _STATE_BYTES.get(wanted.parameter)
    alike = {wanted.parameter, wanted.gradient, wanted.gathered}
    if state is None or len(alike) > 1 or wanted.reduced not in (4, wanted.parameter):
        raise BadInput(
            f"--verify has no engine with parameters of {wanted.parameter}, gradients of {wanted.gradient}, "
            f"gathers of {wanted.gathered} and reductions of {wanted.reduced} bytes an element",
            hint="verify with --precision bf16 or fp32",
        )
    if wanted.optimizer_state != state:
        raise BadInput(
            f"--verify runs AdamW with {state} bytes of state an element, the plan has "
            f"{wanted.optimizer_state}",
            hint="verify with the optimizer adam",
        )
    return _DTYPES[wanted.parameter]
