"""Fill in values that a job leaves out with typical ones, and report each as assumed.

If no shape is given, derive one from the parameter count P: a Llama-style block with the hidden size h of the
published model nearest to P (by ratio) that the parallel degrees divide, and heads of 128 (64 below h =
2048). The number of layers is a multiple of 4 and of the pipeline stages. It assumes an MLP of 8/3 h, or for
h >= 8192 an MLP of 7/2 h and 8 key-value heads (Llama 2 70B, arXiv 2307.09288). The MLP width is then
adjusted until the shape has P parameters, to about 0.05 %. The vocabulary is 32,000 (Llama 2), and the head
is not tied.

    hidden    model                     source
    768       GPT-3 Small to 2.7B       arXiv 2005.14165, table 2.1
    4096      Llama 7B to 65B           arXiv 2302.13971, table 2
    12288     GPT-3 175B                arXiv 2005.14165, table 2.1
    16384     Llama 3 405B              arXiv 2407.21783, table 3
    20480     530B                      arXiv 2201.11990, section 3.2
    25600     1T                        arXiv 2104.04473, table 1

13e9 gives 40 layers of hidden size 5120, like Llama 13B and Llama 2 13B; 7.5e9 gives 36 layers of 4096.

A micro-batch is one sample of 4,096 tokens (Llama 2), or of the model's context if shorter. The device is an
H100. Given values are never replaced: a typical value that would contradict them is not used.
"""

import math

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.job import Assumed, Degrees, Job, LlamaBlock, Shape
from zprof.model.machines import H100
from zprof.model.plan import ZERO_STAGES, Axis, Scheme
from zprof.planner.model_shapes import count_parameters
from zprof.planner.refusals import refuse_impossible
from zprof.planner.rounding import ceil_div

_SAMPLES = 1
_SEQUENCE = 4096
_VOCABULARY = 32_000
#: Parameters and hidden sizes of published models.
_WIDTHS = (
    *((125e6, 768), (350e6, 1024), (760e6, 1536), (1.3e9, 2048), (2.7e9, 2560)),
    *((6.7e9, 4096), (13.0e9, 5120), (32.5e9, 6656), (65.2e9, 8192)),
    *((175e9, 12_288), (405e9, 16_384), (530e9, 20_480), (1e12, 25_600)),
)
#: Further than this ratio from every published model, no shape is assumed.
_MAX_RATIO = 2.5
_LAYER_MULTIPLE, _MLP_MULTIPLE = 4, 8
_HEAD_WIDTH, _NARROW_HEAD_WIDTH, _WIDE_FROM = 128, 64, 2048
_GROUPED_FROM, _KV_HEADS = 8192, 8
#: Parameters per block, in units of h^2; determines the number of layers.
_BLOCK_ELEMENTS, _GROUPED_BLOCK_ELEMENTS = 12, 12.75
#: Bounds of hidden / layers; published models: 53 to 203.
_MIN_ASPECT, _MAX_ASPECT = 32, 256
#: Bounds of the MLP width relative to the hidden size; published models: 2.7 to 5.3.
_MIN_MLP_RATIO, _MAX_MLP_RATIO = 1, 8
#: Assumptions that affect device memory.
_IN_MEMORY = frozenset({Assumed.SHAPE, Assumed.MICRO_BATCH, Assumed.SEQUENCE})


def assume_missing(job: Job) -> Job:
    """Return the job with typical values for a missing shape, batch or hardware.

    A model known only by its units keeps its batch, because its context limit is unknown.
    """
    for fill in (_assume_shape, _assume_batch, assume_hardware):
        filled = fill(job)
        if filled is not job and _is_possible(filled):
            job = filled
    return job


def drop_assumed(job: Job) -> Job:
    """Return the job as given, without assumed values."""
    if not job.assumed:
        return job
    assumed, batch = set(job.assumed), job.batch
    return replace(
        job,
        shape=None if Assumed.SHAPE in assumed else job.shape,
        units=() if job.shape is not None else job.units,
        batch=replace(
            batch,
            samples=None if Assumed.MICRO_BATCH in assumed else batch.samples,
            sequence=None if Assumed.SEQUENCE in assumed else batch.sequence,
        ),
        hardware=None if Assumed.HARDWARE in assumed else job.hardware,
        assumed=(),
    )


def list_assumed_leaves(job: Job, scheme: Scheme) -> tuple[str, ...]:
    """Return the leaves of a plan row that rest on assumptions.

    The states of a ZeRO stage follow from the number of parameters.
    """
    assumed = set(job.assumed)
    if not assumed:
        return ()
    shaped = Assumed.SHAPE in assumed and scheme not in ZERO_STAGES
    return (
        *(("state_bytes", "degrees") if shaped else ()),
        *(("peak_bytes",) if assumed & _IN_MEMORY else ()),
        *("fits", "largest_parameters", "step"),
    )


def list_assumed_traffic(job: Job, scheme: Scheme, axis: Axis) -> tuple[str, ...]:
    """Return the leaves of a link's traffic that rest on assumptions.

    The bytes that a ZeRO stage moves follow from the number of parameters, unless a unit stays gathered.
    """
    assumed = set(job.assumed)
    from_parameters = axis is Axis.DATA and scheme in ZERO_STAGES and not job.overlap.keep_last
    return (
        *(("bytes",) if assumed & _IN_MEMORY and not from_parameters else ()),
        *(("time_ns",) if assumed else ()),
    )


def _assume_shape(job: Job) -> Job:
    if job.shape is not None or job.units:
        return job
    shape = infer_shape(job.parameters, job.degrees)
    return job if shape is None else replace(job, shape=shape, assumed=(*job.assumed, Assumed.SHAPE))


def _assume_batch(job: Job) -> Job:
    return job if job.shape is None else assume_batch(job, job.shape.context)


def assume_batch(job: Job, context: int) -> Job:
    """Return the job with a micro-batch and a sequence, which is at most the model's context (0: unknown)."""
    batch, assumed = job.batch, job.assumed
    if batch.samples is None:
        batch, assumed = replace(batch, samples=_SAMPLES), (*assumed, Assumed.MICRO_BATCH)
    if batch.sequence is None:
        sequence = min(_SEQUENCE, context or _SEQUENCE)
        batch, assumed = replace(batch, sequence=sequence), (*assumed, Assumed.SEQUENCE)
    return job if batch is job.batch else replace(job, batch=batch, assumed=assumed)


def assume_hardware(job: Job) -> Job:
    """Return the job with hardware."""
    if job.hardware is not None:
        return job
    return replace(job, hardware=H100, assumed=(*job.assumed, Assumed.HARDWARE))


def _is_possible(job: Job) -> bool:
    try:
        refuse_impossible(job)
    except BadInput:
        return False
    return True


def infer_shape(parameters: int, degrees: Degrees) -> Shape | None:
    """Return a typical shape of that size that the degrees divide, or None."""
    if not _WIDTHS[0][0] / _MAX_RATIO <= parameters <= _WIDTHS[-1][0] * _MAX_RATIO:
        return None
    nearest_first = sorted(_WIDTHS, key=lambda entry: abs(math.log(entry[0] / parameters)))
    shapes = (_make_shape(parameters, hidden, degrees) for _, hidden in nearest_first)
    return next((shape for shape in shapes if shape is not None), None)


def _make_shape(parameters: int, hidden: int, degrees: Degrees) -> Shape | None:
    """Return a shape of that width and size; None if the degrees or the bounds of the MLP exclude it."""
    head_width = _HEAD_WIDTH if hidden >= _WIDE_FROM else _NARROW_HEAD_WIDTH
    heads = hidden // head_width
    grouped = hidden >= _GROUPED_FROM
    kv_heads = max(_KV_HEADS, degrees.mp) if grouped else heads
    if heads % kv_heads or kv_heads % degrees.mp:
        return None
    multiple = math.lcm(_LAYER_MULTIPLE, degrees.pp)
    vocabulary = ceil_div(_VOCABULARY, degrees.mp) * degrees.mp
    block_elements = (_GROUPED_BLOCK_ELEMENTS if grouped else _BLOCK_ELEMENTS) * hidden**2
    in_blocks = parameters - 2 * vocabulary * hidden
    layers = max(1, round(in_blocks / block_elements / multiple)) * multiple
    if not _MIN_ASPECT <= hidden / layers <= _MAX_ASPECT:
        return None
    shape = Shape(
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        tied=False,
    )
    block = LlamaBlock(kv_heads=kv_heads, head_width=head_width, mlp=0)
    # The MLP holds the remaining parameters.
    missing = parameters - count_parameters(replace(shape, block=block))
    multiple = math.lcm(_MLP_MULTIPLE, degrees.mp)
    mlp = round(missing / (3 * layers * hidden * multiple)) * multiple
    if not _MIN_MLP_RATIO * hidden <= mlp <= _MAX_MLP_RATIO * hidden:
        return None
    return replace(shape, block=replace(block, mlp=mlp))
