"""Rules about what moves more often, or in more bytes, than the stage needs."""

from zprof.model.causes import Cause
from zprof.rules.rule import Rule
from zprof.rules.volume.fp32_gather import fp32_gather
from zprof.rules.volume.fp32_reduce import fp32_reduce
from zprof.rules.volume.passes.accumulation_regathers import accumulation_regathers
from zprof.rules.volume.passes.accumulation_syncs import accumulation_syncs
from zprof.rules.volume.passes.checkpoint_regathers import checkpoint_regathers
from zprof.rules.volume.passes.last_unit_regathered import last_unit_regathered
from zprof.rules.volume.passes.needless_reshard_after_forward import needless_reshard_after_forward
from zprof.rules.volume.uneven_shapes import uneven_shapes
from zprof.rules.volume.unhidden_optimizer_gather import unhidden_optimizer_gather

_TRANSFER = ("exposed_transfer_ns",)
#: Collectives that vanish take their waits, their launches and, on a CPU, their copies with them.
_WHOLE = ("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns")

ASKED: tuple[Rule, ...] = (
    Rule(
        cause=Cause.FP32_REDUCE,
        check=fp32_reduce,
        claims=_TRANSFER,
        # reductions that take twice as long hold up the gathers of the backward behind them
        explains=(Cause.NEEDLESS_RESHARD_AFTER_FORWARD,),
    ),
    Rule(
        cause=Cause.FP32_GATHER,
        check=fp32_gather,
        claims=_TRANSFER,
        # gathers of twice the bytes come late, those of the backward among them
        explains=(Cause.NEEDLESS_RESHARD_AFTER_FORWARD,),
    ),
    Rule(cause=Cause.UNHIDDEN_OPTIMIZER_GATHER, check=unhidden_optimizer_gather, claims=_TRANSFER),
    Rule(
        cause=Cause.UNEVEN_SHAPES,
        check=uneven_shapes,
        # the waits for a rank with longer inputs, the transfer of padding, the kernels that fill it up
        claims=("exposed_wait_ns", "exposed_transfer_ns", "compute_ns"),
        explains=(Cause.STRAGGLER_RANK, Cause.COPY_OVERHEAD),
    ),
    Rule(cause=Cause.ACCUMULATION_SYNCS, check=accumulation_syncs, claims=_WHOLE),
    Rule(cause=Cause.ACCUMULATION_REGATHERS, check=accumulation_regathers, claims=_WHOLE),
    Rule(
        cause=Cause.CHECKPOINT_REGATHERS,
        check=checkpoint_regathers,
        claims=_WHOLE,
        # recomputation asks for its gather at the moment that it needs it
        explains=(Cause.NO_PREFETCH,),
    ),
    Rule(cause=Cause.LAST_UNIT_REGATHERED, check=last_unit_regathered, claims=_WHOLE),
    Rule(cause=Cause.NEEDLESS_RESHARD_AFTER_FORWARD, check=needless_reshard_after_forward, claims=_WHOLE),
)
