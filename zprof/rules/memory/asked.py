"""Rules that read the memory of the report, and claim no time."""

from zprof.model.causes import Cause
from zprof.rules.memory.activations_dominate import activations_dominate
from zprof.rules.memory.buffers_dominate import buffers_dominate
from zprof.rules.memory.fragmentation import fragmentation
from zprof.rules.memory.init_spike import init_spike
from zprof.rules.memory.logits_dominate import logits_dominate
from zprof.rules.memory.outside_allocator import outside_allocator
from zprof.rules.memory.replicated_state import replicated_state
from zprof.rules.memory.retained_gradients import retained_gradients
from zprof.rules.memory.wrong_stage import wrong_stage
from zprof.rules.rule import Rule

ASKED = (
    Rule(cause=Cause.BUFFERS_DOMINATE, check=buffers_dominate),
    Rule(cause=Cause.FRAGMENTATION, check=fragmentation),
    Rule(cause=Cause.ACTIVATIONS_DOMINATE, check=activations_dominate),
    Rule(cause=Cause.LOGITS_DOMINATE, check=logits_dominate),
    Rule(cause=Cause.REPLICATED_STATE, check=replicated_state),
    Rule(cause=Cause.WRONG_STAGE, check=wrong_stage),
    Rule(cause=Cause.RETAINED_GRADIENTS, check=retained_gradients),
    Rule(cause=Cause.INIT_SPIKE, check=init_spike),
    Rule(cause=Cause.OUTSIDE_ALLOCATOR, check=outside_allocator),
)
