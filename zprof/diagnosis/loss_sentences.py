"""Describe the loss that no finding explains: how much, of what kind, at which bandwidth, what decides."""

from collections.abc import Mapping, Sequence

from zprof.diagnosis.claims import ExposedGroup, Unexplained
from zprof.model.findings import Finding
from zprof.model.formatting import format_ns, format_rate, printable, shorten
from zprof.model.machines import find_machine
from zprof.model.report import RunFacts
from zprof.model.time import LEDGER_NAMES, Time

#: Minimum share of the step for a loss to be mentioned.
MIN_STEP_RATIO = 0.1
#: Maximum number of groups listed, and their minimum size relative to the largest one.
_MAX_GROUPS = 3
_MIN_GROUP_RATIO = 0.1
_MAX_NAME_LENGTH = 40
_COMMUNICATION = ("exposed_wait_ns", "exposed_transfer_ns")
#: What tells the cause of a loss, by its ledger term.
_DECIDES: Mapping[str, str] = {
    "exposed_wait_ns": "which rank comes last, and what it did, is in zprof tui",
    "exposed_transfer_ns": "what the link can give decides: measure it, and pass --expected-busbw",
    "exposed_memcpy_ns": "which copies these are is in zprof report",
    "idle_ns": "stacks of the host decide: record with zprof record, or profile with_stack=True",
    "unexplained_ns": "a recording of these times decides",
}


def describe_unexplained(run: RunFacts, time: Time, unexplained: Unexplained, sure: Sequence[Finding]) -> str:
    """Describe a rank's loss if it exceeds all savings and a tenth of its step, else return "".

    A small sure cause is not why a step is slow. What only the first step loses is start-up.
    """
    terms = unexplained.recurring
    loss_ns = sum(terms.values())
    saved_ns = sum(finding.saving_ns[1] for finding in sure)
    wall_ns = next((rank.wall_ns for rank in time.per_rank if rank.rank == unexplained.rank), 0)
    if loss_ns <= saved_ns or loss_ns < MIN_STEP_RATIO * wall_ns:
        return ""
    largest = max(terms, key=lambda term: terms[term])
    where, decides = "", _DECIDES[largest]
    if largest in _COMMUNICATION and unexplained.groups:
        where = f" in {_name_group(unexplained.groups[0])}"
    usual = describe_usual_bandwidth(run, unexplained) if largest == "exposed_transfer_ns" else ""
    if usual:
        decides = f"{usual}; {decides}"
    kind = LEDGER_NAMES.get(largest, largest)
    return (
        f"rank {unexplained.rank} loses {format_ns(loss_ns)} that no finding explains, mostly {kind}{where} "
        f"({decides})"
    )


def list_groups(unexplained: Unexplained) -> str:
    """List the groups of collectives with the largest losses, each as the mean of its own ranks, with the bus
    bandwidth that its largest messages reach.

    Groups of other ranks run at the same time, so these figures do not add up to the loss of a rank.
    """
    groups = [
        f"{format_ns(entry.ns)} in {_name_group(entry)}"
        for entry in unexplained.groups[:_MAX_GROUPS]
        if entry.ns >= _MIN_GROUP_RATIO * unexplained.groups[0].ns
    ]
    if len(groups) < 2:
        return f" ({groups[0]})" if groups else ""
    return f" (per rank of each group, not additive: {', '.join(groups)})"


def describe_usual_bandwidth(run: RunFacts, unexplained: Unexplained) -> str:
    """Return what machines with this device usually have, if the bandwidth of a loss is known; else ""."""
    machine = find_machine(run.device)
    if machine is None or not any(entry.bus_bytes_per_s for entry in unexplained.groups[:1]):
        return ""
    within = format_rate(machine.intra_bytes_per_s)
    between = format_rate(machine.node_bytes_per_s / machine.devices_per_node)
    return f"machines with {machine.name} usually have {within} within a node and {between} between nodes"


def _name_group(entry: ExposedGroup) -> str:
    name = f"{entry.kind} of group {shorten(printable(entry.group), _MAX_NAME_LENGTH)}"
    return name if entry.bus_bytes_per_s is None else f"{name} at {format_rate(entry.bus_bytes_per_s)}"
