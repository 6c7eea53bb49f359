"""Judge message sizes on devices by what the step gains with other sizes.

Three causes share their signs (short exposed messages) but differ: units that are parts of blocks, one unit
for the entire model, and a link with high latency for any size. The first two follow from the order of
gathers and compute, the third from the latency. Shards that span hosts are judged here too. If the played
step has an edit for a cause in this run, its answer replaces that of the rule; if it has none, the rule's
answer stays.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_per_step
from zprof.causes.fix import choose_fix, measure_sizes
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_rate
from zprof.model.gaps import Gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.transfer.latency_bound_collectives import FIXES as LATENCY_FIXES
from zprof.rules.transfer.sharding_spans_nodes import FIXES as HOST_FIXES
from zprof.rules.transfer.single_unit import UNIT_FIXES as ONE_UNIT_FIXES
from zprof.rules.transfer.small_messages import UNITS_PER_BLOCK, find_small_messages
from zprof.rules.transfer.units_too_small import FIXES as SMALL_UNIT_FIXES
from zprof.step.message_sizes import (
    ResizedMessages,
    find_spanning_shards,
    shard_within_host,
)
from zprof.step.predict import PlayedStep, widen_gains
from zprof.step.tasks import Graph

#: Minimum gain, as a share of the step, to report a cause, and for high confidence.
_MIN_STEP_RATIO, _HIGH_CONFIDENCE_RATIO = 0.015, 0.05
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: Maximum share of the gain lost because kernels that newly overlap with messages slow down.
_MAX_SLOWDOWN_LOSS_RATIO = 0.25


class NoFinding(Enum):
    """Why a replay has no finding of a cause; only ``REFUTED`` overrules the finding of a rule."""

    #: The cause is absent, explained by another one, or the step without it takes as long.
    REFUTED = auto()
    #: The replay cannot represent the step without the cause: it says nothing about it.
    NO_EDIT = auto()


_Judgement = Finding | NoFinding


def judge_message_sizes(
    analysis: RunAnalysis, step: PlayedStep, answers: Sequence[Finding | Gap]
) -> tuple[list[Finding | Gap], list[Finding]]:
    """Return the answers without those about message sizes, and the findings of replays about these."""
    if step.graph is None or not step.has_kernels:
        return list(answers), []
    known = {answer.cause: answer for answer in answers if isinstance(answer, Finding)}
    judged = _judge_causes(analysis, step, ResizedMessages(analysis, step.graph), known)
    decided = [cause for cause, judgement in judged.items() if judgement is not NoFinding.NO_EDIT]
    rest = [answer for answer in answers if not _is_about(answer, decided)]
    return rest, [judgement for judgement in judged.values() if isinstance(judgement, Finding)]


def _is_about(answer: Finding | Gap, causes: Sequence[Cause]) -> bool:
    own = (answer.cause,) if isinstance(answer, Finding) else answer.causes
    return any(cause in own for cause in causes)


def _judge_causes(
    analysis: RunAnalysis, step: PlayedStep, sizes: ResizedMessages, known: Mapping[Cause, Finding]
) -> dict[Cause, _Judgement]:
    if not len(sizes.messages.at):
        return {}
    judged: dict[Cause, _Judgement] = {}
    if sizes.has_blocks:  # without blocks it is unknown if units are parts of blocks
        units = _judge_small_units(analysis, step, sizes)
        if units is NoFinding.REFUTED:
            units = _find_named_parts(analysis, known) or units
        judged[Cause.UNITS_TOO_SMALL] = units
        # units that wait for a normal latency wait less often if they are larger
        small = known.get(Cause.UNITS_TOO_SMALL) if units is NoFinding.NO_EDIT else units
        has_small = isinstance(small, Finding) and small.confidence is not Confidence.LOW
        latency = NoFinding.REFUTED if has_small else _judge_latency(analysis, step, sizes)
        judged[Cause.LATENCY_BOUND_COLLECTIVES] = latency
        if sizes.gathers_for_passes:
            judged[Cause.SINGLE_UNIT] = _judge_single_unit(analysis, step, sizes)
    if find_spanning_shards(analysis) is not None:
        judged[Cause.SHARDING_SPANS_NODES] = _judge_spanning_shards(analysis, step)
    return judged


def _find_named_parts(analysis: RunAnalysis, known: Mapping[Cause, Finding]) -> Finding | None:
    """Return the rule's finding if names show that units are parts of blocks."""
    small = find_small_messages(analysis)
    return known.get(Cause.UNITS_TOO_SMALL) if small is not None and small.are_parts else None


def _saving_range(
    step: PlayedStep, changed: Sequence[Graph], lowered: float = 0.0
) -> tuple[float, float, float] | NoFinding:
    """Return the maximum replayed gain and its bounds, if it is large enough for a finding."""
    gains = [gain for graph in changed if (gain := step.gain_ns(graph)) is not None]
    if not gains:
        return NoFinding.NO_EDIT
    if max(gains) < _MIN_STEP_RATIO * step.step_ns:
        return NoFinding.REFUTED
    low, high = widen_gains(min(gains) * (1 - lowered), max(gains), step.step_ns)
    return max(gains), low, high


def _rate_confidence(step: PlayedStep, low: float) -> Confidence:
    steps = step.graph.steps if step.graph else 0
    if steps == 1:
        return Confidence.LOW
    sure = low >= _HIGH_CONFIDENCE_RATIO * step.step_ns and steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    return Confidence.HIGH if sure else Confidence.MEDIUM


def _judge_small_units(analysis: RunAnalysis, step: PlayedStep, sizes: ResizedMessages) -> _Judgement:
    words = analysis.time.words
    units, messages = sizes.messages.units_per_block, sizes.messages.gathers_per_block
    if messages <= UNITS_PER_BLOCK:  # larger units would contain several blocks, and these are not replayed
        return NoFinding.NO_EDIT
    saving = _saving_range(step, sizes.merge())
    if isinstance(saving, NoFinding):
        return saving
    gain, low, high = saving
    count = mean_per_step(analysis, len(sizes.messages.gathers) * len(sizes.graph.ranks))
    shorter = f"{words.step_is} shorter"
    return make_finding(
        analysis,
        Cause.UNITS_TOO_SMALL,
        sentence=f"each block is split into {units:g} units: with one unit per block {shorter}"
        if units > UNITS_PER_BLOCK
        else f"each block is gathered in {messages:g} messages: with one message per block {shorter}",
        evidence=[
            make_fact("units_per_block", units),
            make_fact("gathers_per_block", messages),
            make_fact("all_gathers_per_step", count),
            make_fact("latency_of_one/all_gather", _latency_ns(sizes)),
            _replay_evidence(gain),
        ],
        saving_ns=(low, high),
        severity=rate_severity(high, step.step_ns),
        confidence=_rate_confidence(step, low),
        fix=choose_fix(analysis, SMALL_UNIT_FIXES, measure_sizes(analysis, max(units, messages))),
        disprove="wrap entire blocks and record again: if the gathers stay exposed as long, their number "
        "was not the cause",
    )


def _judge_latency(analysis: RunAnalysis, step: PlayedStep, sizes: ResizedMessages) -> _Judgement:
    words = analysis.time.words
    saving = _saving_range(step, sizes.reduce_latency())
    if isinstance(saving, NoFinding):
        return saving
    gain, low, high = saving
    latency = _latency_ns(sizes)
    fixes = LATENCY_FIXES[0] if sizes.gathers_for_passes else LATENCY_FIXES[1]
    larger = choose_fix(analysis, fixes, measure_sizes(analysis, _LARGER_MESSAGES))
    return make_finding(
        analysis,
        Cause.LATENCY_BOUND_COLLECTIVES,
        sentence=f"a collective takes at least {format_ns(latency)} regardless of its size: with the "
        f"latency of a normal link {words.step_is} shorter",
        evidence=[
            make_fact("latency_of_one/collective", latency),
            _replay_evidence(gain),
        ],
        saving_ns=(low, high),
        severity=rate_severity(high, step.step_ns),
        confidence=_rate_confidence(step, low),
        fix="repair the link (NCCL_DEBUG=INFO shows the transport; NCCL_IB_HCA, NCCL_SOCKET_IFNAME choose "
        f"it), or send fewer and larger messages:\n{larger}",
        disprove="measure one element between the same hosts (nccl-tests -b 4 -e 4, ping): if that takes "
        "far less than the reported latency, the messages wait for something else",
    )


def _judge_single_unit(analysis: RunAnalysis, step: PlayedStep, sizes: ResizedMessages) -> _Judgement:
    words = analysis.time.words
    saving = (
        _saving_range(step, sizes.split(), _MAX_SLOWDOWN_LOSS_RATIO)
        if sizes.is_one_unit
        else NoFinding.REFUTED
    )
    if isinstance(saving, NoFinding):
        return saving
    gain, low, high = saving
    blocks = len(np.unique(sizes.messages.blocks)) // (2 * sizes.graph.steps)
    return make_finding(
        analysis,
        Cause.SINGLE_UNIT,
        sentence=f"the model is one unit, gathered before its {blocks} blocks compute: with one unit per "
        f"block {words.step_is} shorter",
        evidence=[
            make_fact("model_blocks", blocks),
            _replay_evidence(gain),
        ],
        saving_ns=(low, high),
        severity=rate_severity(high, step.step_ns),
        confidence=_rate_confidence(step, low),
        fix=choose_fix(analysis, ONE_UNIT_FIXES, measure_sizes(analysis, 1 / max(1, blocks))),
        disprove="wrap each block and record again: if the first gather and the last reduction are exposed "
        "as long as before, the link is slow",
    )


def _judge_spanning_shards(analysis: RunAnalysis, step: PlayedStep) -> _Judgement:
    words = analysis.time.words
    spanning = find_spanning_shards(analysis)
    if spanning is None or step.graph is None:
        return NoFinding.NO_EDIT
    saving = _saving_range(step, shard_within_host(analysis, step.graph, spanning))
    if isinstance(saving, NoFinding):
        return saving
    gain, low, high = saving
    rate = f"at least the {format_rate(spanning.within[0])} available within a host"
    sure = _rate_confidence(step, low)
    return make_finding(
        analysis,
        Cause.SHARDING_SPANS_NODES,
        sentence=f"parameters are sharded across {spanning.hosts} hosts, so every gather crosses the link "
        f"between them: {format_rate(spanning.seen)} of bus bandwidth instead of {rate}. With shards "
        f"within a host {words.step_is} shorter",
        evidence=[
            make_fact("sharding_hosts", spanning.hosts),
            make_fact("ranks_per_host", spanning.per_host),
            make_fact("bus_bandwidth_median", spanning.seen),
            _replay_evidence(gain),
        ],
        saving_ns=(low, high),
        severity=rate_severity(high, step.step_ns),
        confidence=sure if spanning.measured or sure is not Confidence.HIGH else Confidence.MEDIUM,
        fix=choose_fix(analysis, HOST_FIXES, {"hosts": spanning.hosts, "ranks_per_host": spanning.per_host}),
        disprove="run the same job on the ranks of one host: if its gathers are as slow there, the link "
        "between hosts is not the cause",
    )


#: Factor by which messages grow to be less than half latency, if the best size is not known.
_LARGER_MESSAGES = 4


def _latency_ns(sizes: ResizedMessages) -> float:
    return max(sizes.latency.by_ranks.values(), default=0.0)


def _replay_evidence(gain: float) -> Fact:
    return make_fact("replayed_saving", gain)
