"""Leaves of memory: tenants at the peak, laws, and what stands beside the allocator."""

from zprof.model.tenants import SHOWN, Tenant
from zprof.tui.meanings.meaning import Meaning
from zprof.tui.meanings.memory_device import DEVICES
from zprof.tui.meanings.memory_rows import (
    facts_of,
    kinds_of,
    largest_of,
    laws_of,
    modules_of,
    phases_of,
)

_SUM = "peak = parameters + gradients + optimizer state + activations + temporary + communication + untagged"
_LAW = (
    "Psi elements x bytes of one, / N ranks where the stage shards it (optimizer state from 1, gradients "
    "from 2, parameters in 3): stage 0 (p+g+k)Psi, 1 (p+g)Psi + kPsi/N, 2 pPsi + (g+k)Psi/N, 3 (p+g+k)Psi/N"
)
_PARTS = (*(f"tenants.{tenant.value}" for tenant in SHOWN), "untagged_bytes")
_SAYS = {
    Tenant.PARAMETERS: "Weights and buffers of modules: what stays between steps, a shard in stage 3. What "
    "is gathered for a forward is a communication buffer.",
    Tenant.GRADIENTS: "What .grad reaches, and whole gradients until an engine reduces them.",
    Tenant.OPTIMIZER_STATE: "Tensors of optimizer.state, step counters, and fp32 masters that it owns.",
    Tenant.ACTIVATIONS: "What autograd, a checkpoint or a custom function keeps for the backward.",
    Tenant.TEMPORARY_BUFFERS: "All else that an operator of the recorded steps made or used inside: "
    "gradients of activations, workspaces, temporaries of the optimizer.",
    Tenant.COMMUNICATION_BUFFERS: "Operands of collectives that are no state: gathered parameters, inputs of "
    "reduce-scatters, buckets, what the backend allocates for itself.",
}
_UNTAGGED = "Live bytes that no hook, tag or rule claims. They are in no tenant."
_MEASURED = (
    "All bytes of this state on the rank while it is complete, which need not be at the peak: gradients when "
    "the optimizer begins."
)


def _peaks(stem: str, what: str) -> tuple[Meaning, ...]:
    """The leaves of a rank's memory at a peak."""
    rows = kinds_of if stem == "per_rank" else phases_of if stem == "phases" else None
    return (
        Meaning(
            leaf=f"memory.{stem}[].peak_bytes",
            title="peak",
            says=f"{what} Each byte has one tenant, and what none claims is untagged.",
            formula=_SUM,
            inputs=_PARTS,
            rows=rows() if rows else None,
        ),
        *(
            Meaning(
                leaf=f"memory.{stem}[].tenants.{tenant.value}",
                title=tenant.value,
                says=f"{_SAYS[tenant]} {what}",
                formula=f"{_SUM}: this is one of its terms",
                inputs=("../peak_bytes",),
                rows=kinds_of(tenant.value) if stem == "per_rank" else rows() if rows else None,
            )
            for tenant in SHOWN
        ),
        Meaning(
            leaf=f"memory.{stem}[].untagged_bytes",
            title="untagged",
            says=f"{_UNTAGGED} {what}",
            formula="untagged = peak - all tenants",
            inputs=("peak_bytes",),
            rows=largest_of("untagged") if stem == "per_rank" else None,
        ),
    )


_OUTSIDE = (
    Meaning(
        leaf="memory.per_rank[].reserved_unused_bytes",
        title="reserved, unused",
        says="What the allocator took from the device and nothing live uses, at the allocated peak.",
        formula="reserved, unused = reserved by the allocator - allocated",
        inputs=("peak_bytes",),
    ),
    Meaning(
        leaf="memory.per_rank[].non_pytorch_bytes",
        title="outside PyTorch",
        says="What the process has on the device outside the allocator: context, communicators, libraries.",
        formula="outside PyTorch = this process on the device - reserved by the allocator",
        inputs=("peak_bytes", "reserved_unused_bytes"),
    ),
    Meaning(
        leaf="memory.spread.difference_bytes",
        title="difference between ranks",
        says="The largest peak of a rank minus the smallest.",
        formula="difference = peak of the largest rank - peak of the smallest",
    ),
    *(
        Meaning(
            leaf=f"memory.spread.delta_bytes.{name}",
            title=f"difference in {name}",
            says="What the rank with the largest peak holds more of it than the one with the smallest.",
            formula="the six tenants and untagged sum to the difference",
            inputs=("/memory.spread.difference_bytes",),
        )
        for name in (*(tenant.value for tenant in SHOWN), "untagged")
    ),
)
_LAWS = (
    Meaning(
        leaf="memory.laws[].law_bytes",
        title="law",
        says="What ZeRO's formula gives one rank of this state, without padding and counters.",
        formula=_LAW,
        rows=facts_of,
    ),
    Meaning(
        leaf="memory.laws[].measured_bytes",
        title="measured",
        says=_MEASURED,
        formula="measured = law + padding + step counters + unexplained",
        inputs=("law_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes"),
        rows=laws_of,
    ),
    Meaning(
        leaf="memory.laws[].padding_bytes",
        title="padding",
        says="What the engine says that it adds so that all shards have the same size.",
        formula="padding = bytes of an element x padding elements, / N where it is sharded",
        rows=facts_of,
    ),
    Meaning(
        leaf="memory.laws[].scalar_bytes",
        title="step counters",
        says="The optimizer's 4-byte step counters, of which the law knows nothing.",
        formula="4 x step counters of the rank",
        rows=facts_of,
    ),
    Meaning(
        leaf="memory.laws[].unexplained_bytes",
        title="unexplained",
        says="What neither the law nor what is stated beside it gives. The cause stands in the row.",
        formula="unexplained = measured - law - padding - step counters",
        inputs=("measured_bytes", "law_bytes", "padding_bytes", "scalar_bytes"),
        rows=laws_of,
    ),
)
_OTHERS = (
    Meaning(
        leaf="memory.top[].bytes",
        title="allocation",
        says="One allocation that was live at the rank's peak; a rank's largest are kept.",
        rows=largest_of(""),
    ),
    Meaning(
        leaf="memory.modules[].at_rank_peak_bytes",
        title="module at the peak",
        says="What this module, with all inside of it, had allocated and was live at the rank's own peak.",
        inputs=("peak_bytes",),
        rows=modules_of,
    ),
    Meaning(
        leaf="memory.modules[].peak_bytes",
        title="module, most at one time",
        says="The most that was live at one time of what this module, with all inside of it, allocated.",
        inputs=("at_rank_peak_bytes",),
        rows=modules_of,
    ),
    Meaning(
        leaf="memory.timelines[].time_ns[]",
        title="when",
        says="Time of a point of the timeline, from the begin of the recorded window.",
    ),
    *(
        Meaning(
            leaf=f"memory.timelines[].tenants.{name}[]",
            title=name,
            says="Live bytes at a point of the timeline, which is the highest of its stretch of the window: "
            "the window is cut into stretches of equal length, and no peak is lost.",
            formula="live = the six tenants + untagged",
        )
        for name in (*(tenant.value for tenant in SHOWN), "untagged")
    ),
)

MEMORY: tuple[Meaning, ...] = (
    *_peaks("per_rank", "Live in the allocator when the rank was at its highest."),
    *_peaks("phases", "At the highest point within this phase."),
    *_peaks("init", "At the highest point before the first step."),
    *_peaks("host", "Host memory of a rank that has a GPU, at its highest point."),
    *_OUTSIDE,
    *_LAWS,
    *_OTHERS,
    *DEVICES,
)
