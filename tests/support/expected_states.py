"""Model states that a rank must show to the byte."""

from collections.abc import Mapping

from zprof.analysis.zero_formulas import compute_tenant_formulas
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

_STATES = 3


def expected_state(facts: TrainingFacts) -> Mapping[Tenant, int] | None:
    """Bytes of each state with the stated padding and step counters; None where one has no formula."""
    formulas = compute_tenant_formulas(facts)
    if len(formulas) < _STATES:
        return None
    return {
        tenant: formula.formula_bytes + formula.padding_bytes + formula.scalar_bytes
        for tenant, formula in formulas.items()
    }
