"""Why a model state is not what its stage's law says: one plain sentence, only where the numbers fit.

A cause is named where it gives the measured bytes to within 1 %.  Where two fit alike, both are named; where
none does, the difference stays "not explained".
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.model.tenants import Tenant

NOT_EXPLAINED = "not explained"
PADDING = "padding of shards to equal size"
COUNTERS = "4-byte step counters of the optimizer"
_TOLERANCE = 0.01
#: (bytes an element by the law, bytes an element that are there): what that is.
_SIZES: dict[Tenant, dict[tuple[int, int], str]] = {
    Tenant.PARAMETERS: {
        (2, 4): "parameters are kept in fp32, the law counts 2 bytes an element",
        (4, 2): "parameters are kept in 2 bytes an element, the law counts 4",
        (2, 6): "bf16 parameters with fp32 masters: 6 bytes an element, the law counts 2",
        (4, 6): "fp32 parameters with a copy in 2 bytes an element",
    },
    Tenant.GRADIENTS: {
        (2, 4): "gradients are reduced in fp32 and kept so: 4 bytes an element, the law counts 2",
        (4, 2): "gradients are kept in 2 bytes an element, the law counts 4",
        (2, 6): "gradients in 2 bytes an element and their fp32 sums",
    },
    Tenant.OPTIMIZER_STATE: {
        (8, 12): "fp32 masters beside the moments: 12 bytes an element, the law counts 8",
        (12, 8): "no fp32 masters: 8 bytes an element, the law counts 12",
        (8, 4): "moments of 2 bytes, or one moment of 4: 4 bytes an element, the law counts 8",
        (12, 4): "4 bytes an element (masters, or one moment, alone), the law counts 12",
        (8, 2): "moments of 1 byte: 2 bytes an element, the law counts 8",
        (12, 6): "masters with moments of 1 byte: 6 bytes an element, the law counts 12",
    },
}
_COPY = {
    Tenant.PARAMETERS: "twice the law: parameters and a full copy",
    Tenant.GRADIENTS: "twice the law: gradients and a full copy",
    Tenant.OPTIMIZER_STATE: "twice the law: the state and a full copy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One state of one rank: law, what is stated on top of it, and what was measured.

    ``ranks`` share the states, ``sharded`` says whether the law divides this one among them.
    ``buffer_bytes`` are those of the model's buffers, ``rounding_bytes`` what the allocator's blocks are
    larger than the tensors in them.  ``excess_elements``: whole elements above the law that another sharded
    state of the rank shows too; None where there is no such number.
    """

    tenant: Tenant
    law_bytes: int
    padding_bytes: int
    scalar_bytes: int
    measured_bytes: int
    element_bytes: int
    ranks: int
    sharded: bool
    buffer_bytes: int = 0
    rounding_bytes: int = 0
    excess_elements: int | None = None

    @property
    def unexplained_bytes(self) -> int:
        """What neither the law, nor padding, nor the step counters give."""
        return self.measured_bytes - self.law_bytes - self.padding_bytes - self.scalar_bytes


def explain(difference: Difference) -> str:
    """The cause; empty where the measured bytes are those of the law."""
    if difference.unexplained_bytes == 0:
        stated = ((difference.padding_bytes, PADDING), (difference.scalar_bytes, COUNTERS))
        return " and ".join(name for size, name in stated if size)
    return ", or ".join(dict.fromkeys([*_by_bytes(difference), *_by_ratio(difference)])) or NOT_EXPLAINED


def _by_bytes(state: Difference) -> Iterator[str]:
    """Causes that give the very bytes of the difference."""
    rest = state.unexplained_bytes
    if state.measured_bytes == 0:
        yield (
            "none was live when the optimizer began: the program frees or reduces gradients before that"
            if state.tenant is Tenant.GRADIENTS
            else "none was seen: nothing told the recorder whose bytes these are"
        )
    if state.rounding_bytes > 0 and _near(rest, state.rounding_bytes):
        yield "the allocator's blocks are larger than the tensors in them"
    if state.buffer_bytes > 0 and _near(rest, -state.buffer_bytes):
        yield "buffers of the model are not counted"
    if state.excess_elements and state.sharded and rest == state.excess_elements * state.element_bytes:
        yield f"{PADDING}: {state.excess_elements} elements in each state"


def _by_ratio(state: Difference) -> Iterator[str]:
    """Causes that multiply the law."""
    base = state.law_bytes + state.padding_bytes
    times = (state.measured_bytes - state.scalar_bytes) / base if base else 0.0
    if state.ranks > 1 and state.sharded and _near(times, state.ranks):
        yield (
            f"equals {state.ranks} x the law: the state is not sharded (replicated on {state.ranks} ranks)"
        )
    if state.ranks > 1 and not state.sharded and _near(times, 1 / state.ranks):
        yield f"equals the law / {state.ranks}: the state is sharded over {state.ranks} ranks"
    known = _SIZES[state.tenant].items()
    sizes = [text for (law, there), text in known if law == state.element_bytes and _near(times, there / law)]
    yield from sizes
    if _near(times, 2) and not sizes:
        yield _COPY[state.tenant]


def _near(value: float, expected: float) -> bool:
    return abs(value - expected) <= _TOLERANCE * abs(expected)
