"""Find the exposed messages of one kind of parallelism: the common part of the ``exposed_*`` causes.

    reached  = time of a message at the expected bandwidth, plus a normal latency, / its measured time
    saving   = from the step in which its transfers take reached of their time, to the step without them

All groups of the role must be slow. If one is, and another is not, its link is the cause (low_bus_bandwidth),
not the kind of parallelism. The expected bandwidth is that of the job's other groups with the same span
(within a host, or between hosts). It is at least a part of what machines with this device usually reach:
different topologies, cards and libraries differ by that much. A tensor group between hosts is compared with
groups within a host, because it belongs there.

Exposed messages at their expected bandwidth are a note: the program may hide them, or it may not be able to.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    find_missing_collectives,
    make_fact,
    mean_wall_ns,
)
from zprof.analysis.columns import Columns, Floats
from zprof.base.formatting import format_rate
from zprof.causes.cause import MIN_GAIN_RATIO, Proof, Sign, Signal
from zprof.causes.mesh_fixes import MeshFix, choose_mesh_fix
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.findings import Confidence
from zprof.model.machines import find_machine
from zprof.model.mesh import GroupRole, Mesh, RoleTime
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.bandwidth import spans_hosts
from zprof.step.links import expected_latency_ns, measure_transfers
from zprof.step.tasks import Graph

#: Share of the usual bandwidth of a machine that is still normal.
_USUAL_RATIO = 0.4
#: Messages that reach less than this share of the expected bandwidth are slow; below the second value there
#: is no doubt.
_SLOW_RATIO, _SURELY_SLOW_RATIO = 0.6, 0.4
#: If groups of a role differ by more than this, single links are slow, not the role.
_EVEN_RATIO = 0.5
#: Exposed messages at a normal bandwidth are noted from this share of the step.
_NOTED_RATIO = 0.05
#: A group's bandwidth is that of its faster messages: the rest may share a link.
_QUANTILE = 0.75
#: Messages of a reference group that are smaller than this share of the role's show latency, not bandwidth.
_MIN_SIZE_RATIO = 1 / 16

#: What the records of all ``exposed_*`` causes share.
RECORD: dict[str, Any] = {
    "terms": ("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    "sign": Sign.EXPOSED_ROLE,
    "produces": (Sign.SLOW_MESSAGES, Sign.LATE_GATHERS, Sign.GATHERS_OF_BACKWARD, Sign.FIRST_GATHER),
    "proof": Proof.SPEEDS,
    "evidence": {
        "role_exposed_transfer_per_step": ("their exposed transfer {per_step}", Unit.NS),
        "role_share": ("exposed transfer {of_step}", Unit.RATIO),
        "role_messages_per_step": ("messages {per_step} and rank", Unit.COUNT),
        "role_bytes_per_step": ("bytes {per_step} and rank", Unit.BYTES),
        "role_bus_bandwidth": ("bus bandwidth of the faster messages", Unit.BYTES_PER_S),
        "role_expected_bus_bandwidth": ("at least expected, as {reference}", Unit.BYTES_PER_S),
        "role_reached_ratio": ("their time at the expected bandwidth, relative to the present", Unit.RATIO),
        "role_spanning_groups": ("groups that span hosts, of {groups}", Unit.COUNT),
    },
}


class _Rate(Struct, frozen=True, kw_only=True):
    """Messages of a group: bus bytes per s, bus bytes and time of a message, and whether they span hosts."""

    bytes_per_s: float
    bus_bytes: float
    elapsed_ns: float
    ranks: int
    spans: bool | None

    def reached_ratio(self, bytes_per_s: float) -> float:
        """Return a message's time at this bandwidth and a normal latency, relative to its measured time."""
        latency_ns = expected_latency_ns(self.ranks)[bool(self.spans)]
        return (self.bus_bytes / bytes_per_s * 1e9 + latency_ns) / self.elapsed_ns


class _Expected(Struct, frozen=True, kw_only=True):
    bytes_per_s: float
    reference: str
    is_measured: bool


def find_exposed_role(
    analysis: RunAnalysis, role: GroupRole, messages: str, fix: MeshFix
) -> Signal | Untested | None:
    """Return a signal if the messages of a role are exposed; ``messages`` names them in sentences."""
    mesh = analysis.time.mesh
    time = next((each for each in mesh.roles if each.role is role), None) if mesh is not None else None
    if mesh is None or time is None:
        return None
    if (missing := find_missing_collectives(analysis)) is not None:
        return missing
    share = time.exposed_transfer_ns / max(1.0, mean_wall_ns(analysis))
    if share < MIN_GAIN_RATIO:
        return None
    rates = _measure_rates(analysis, mesh, role)
    fastest = max((rate.bytes_per_s for rate in rates), default=0.0)
    if rates and min(rate.bytes_per_s for rate in rates) < _EVEN_RATIO * fastest:
        return None  # single links are slow
    rate = max(rates, key=lambda each: each.bytes_per_s, default=None)
    expected = _expect(analysis, mesh, role, rate) if rate is not None else None
    reached = rate.reached_ratio(expected.bytes_per_s) if rate is not None and expected is not None else 1.0
    is_slow = reached < _SLOW_RATIO and (1 - reached) * share >= MIN_GAIN_RATIO
    if not is_slow and share < _NOTED_RATIO:
        return None
    is_sure = is_slow and expected is not None and expected.is_measured and reached < _SURELY_SLOW_RATIO
    confidence = Confidence.HIGH if is_sure else Confidence.MEDIUM if is_slow else Confidence.LOW
    exposed_ns = time.exposed_transfer_ns
    return Signal(
        confidence=confidence,
        sentence=""
        if is_slow
        else "{messages} are exposed for {exposed:ns} {per_step} ({share:percent} "
        "{of_step}), at a usual bandwidth: the program computes nothing meanwhile",
        words={
            "messages": messages,
            "exposed": exposed_ns,
            "share": share,
            "measured": rate.bytes_per_s if rate is not None else 0.0,
            "reference": expected.reference if expected is not None else "",
        },
        facts=[
            *_list_facts(mesh, time, share, rate, expected),
            make_fact("role_reached_ratio", min(1.0, reached)),
        ],
        saving_ns=((1 - reached) * exposed_ns if is_slow else 0.0, exposed_ns),
        fix=choose_mesh_fix(analysis, fix),
    )


#: The sentence of the records; the other form is for messages of normal bandwidth.
SENTENCE = (
    "{messages} are exposed for {exposed:ns} {per_step} ({share:percent} {of_step}): they reach "
    "{measured:rate} of bus bandwidth, and {reference}"
)


def _list_facts(
    mesh: Mesh, time: RoleTime, share: float, rate: _Rate | None, expected: _Expected | None
) -> list[Fact]:
    facts = [
        make_fact("role_exposed_transfer_per_step", time.exposed_transfer_ns),
        make_fact("role_share", share),
        make_fact("role_messages_per_step", time.messages),
        make_fact("role_bytes_per_step", time.bytes),
    ]
    if rate is not None:
        facts.append(make_fact("role_bus_bandwidth", rate.bytes_per_s))
        if rate.spans is not None:
            count = time.groups if rate.spans else 0
            facts.append(make_fact("role_spanning_groups", count, groups=time.groups))
    if expected is not None:
        facts.append(
            make_fact("role_expected_bus_bandwidth", expected.bytes_per_s, reference=expected.reference)
        )
    return facts


def _measure_rates(analysis: RunAnalysis, mesh: Mesh, role: GroupRole) -> list[_Rate]:
    """Return the bandwidth of each group of a role; groups without known sizes or times are left out."""
    rates = []
    for group in mesh.list_groups(role):
        rows = analysis.collectives
        rows = measure_transfers(analysis, rows.at(rows.texts("group").equals(group.group)))
        bus_bytes = _measure_bus_bytes(rows, len(group.ranks))
        large = bus_bytes > 0.25 * bus_bytes.max(initial=0.0)
        if not large.any():
            continue
        elapsed_ns = rows.floats("elapsed_ns")[large]
        speed = bus_bytes[large] / elapsed_ns * 1e9
        chosen = int(np.argsort(speed)[int(_QUANTILE * (len(speed) - 1))])
        rates.append(
            _Rate(
                bytes_per_s=float(speed[chosen]),
                bus_bytes=float(bus_bytes[large][chosen]),
                elapsed_ns=float(elapsed_ns[chosen]),
                ranks=len(group.ranks),
                spans=spans_hosts(analysis, group.group),
            )
        )
    return rates


def _measure_bus_bytes(rows: Columns, ranks: int) -> Floats:
    kinds = rows.texts("kind")
    factors = np.array([bus_factor(CollectiveKind(kind), ranks) for kind in (*kinds.words, "barrier")])
    return rows.ints("bytes") * factors[kinds.codes]


def _expect(analysis: RunAnalysis, mesh: Mesh, role: GroupRole, rate: _Rate) -> _Expected | None:
    """Return the bandwidth that the messages of a role should reach, None if nothing tells it."""
    spans = False if role is GroupRole.TENSOR and rate.spans is not None else rate.spans
    place = "" if spans is None else "between hosts" if spans else "within a host"
    others = [
        each.bytes_per_s
        for other in GroupRole
        if other is not role
        for each in _measure_rates(analysis, mesh, other)
        if each.spans is spans and each.bus_bytes >= _MIN_SIZE_RATIO * rate.bus_bytes
    ]
    found = []
    if others:
        reference = (
            f"other groups {place} reach {format_rate(max(others))}"
            if place
            else (f"other groups reach {format_rate(max(others))}")
        )
        found.append(_Expected(bytes_per_s=max(others), reference=reference, is_measured=True))
    machine = find_machine(analysis.run.device)
    if machine is not None and spans is not None:
        each = machine.node_bytes_per_s / machine.devices_per_node
        usual = each if spans else machine.intra_bytes_per_s
        reference = f"machines with {machine.name} usually reach {format_rate(usual)} {place}"
        found.append(_Expected(bytes_per_s=_USUAL_RATIO * usual, reference=reference, is_measured=False))
    return max(found, key=lambda each: each.bytes_per_s, default=None)


def speed_up_role(role: GroupRole) -> Callable[[RunAnalysis, Graph, Any], Sequence[Graph]]:
    """Return the edit of a role's cause: its messages at their expected bandwidth, and hidden altogether."""

    def edit(analysis: RunAnalysis, graph: Graph, finding: Any) -> Sequence[Graph]:
        mesh = analysis.time.mesh
        if mesh is None:
            return []
        values = {entry.key: float(entry.value) for entry in finding.evidence}
        rows = analysis.collectives
        names = [group.group for group in mesh.list_groups(role)]
        mine = rows.at(rows.texts("group").equals(*names)).row.tolist()
        hidden = edits.scale_transfers(graph, dict.fromkeys(mine, 0.0))
        reached = values.get("role_reached_ratio", 1.0)
        if reached >= _SLOW_RATIO:
            return [graph, hidden]
        return [edits.scale_transfers(graph, dict.fromkeys(mine, reached)), hidden]

    return edit
