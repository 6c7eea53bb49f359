"""Assign a tenant to every block of a history: from the program's tag, else from the first rule that applies.

Tags are written with ``torch.cuda.memory._set_memory_metadata("zprof:<tenant>[/<sub>]")``.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.attribution.features import Features, compute_features, find_previous_blocks
from zprof.analysis.memory.attribution.frames import Stacks
from zprof.analysis.memory.attribution.origins import classify_stacks
from zprof.analysis.memory.attribution.rules import (
    LAST_RESORT_RULES,
    TENANT_RULES,
    TenantRule,
    find_first_rule,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

TAG_PREFIX = "zprof:"
_MAX_SUB = 40
_LEVELS = tuple(Confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Why a block belongs to a tenant; ``reason`` is the name of the rule, None of the rest means unknown."""

    tenant: Tenant | None = None
    sub: str = ""
    basis: Basis = Basis.UNKNOWN
    confidence: Confidence | None = None
    reason: str = ""


UNKNOWN = Attribution()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTenants:
    """The attribution of every block: ``number`` is a position in ``attributions``."""

    number: Int
    attributions: tuple[Attribution, ...]

    @property
    def tenant(self) -> Int:
        """Return each block's position in PRECEDENCE, or UNTAGGED."""
        codes = [UNTAGGED if a.tenant is None else TENANT_CODES[a.tenant] for a in self.attributions]
        tenants: Int = np.array(codes, dtype=np.int64)[self.number]
        return tenants

    @property
    def confidence(self) -> Int:
        """Return each block's confidence: 0 high, 1 medium, 2 low, 3 unknown. A tag is high."""
        levels = [
            len(_LEVELS) if a.confidence is None else _LEVELS.index(a.confidence) for a in self.attributions
        ]
        confidences: Int = np.array(levels, dtype=np.int64)[self.number]
        return confidences

    def get(self, row: int) -> Attribution:
        """Return the attribution of one block."""
        return self.attributions[int(self.number[row])]

    def sum_bytes(self, rows: Int, sizes: Int) -> dict[Attribution, int]:
        """Return the bytes of some blocks by attribution, largest first."""
        totals = np.zeros(len(self.attributions), dtype=np.int64)
        np.add.at(totals, self.number[rows], sizes[rows])
        order = [int(index) for index in np.argsort(-totals, kind="stable") if totals[index]]
        return {self.attributions[index]: int(totals[index]) for index in order}

    def sum_basis_bytes(self, rows: Int, sizes: Int) -> dict[Basis, int]:
        """Return the bytes of some blocks by the basis of their tenants."""
        bytes_by_basis = dict.fromkeys(Basis, 0)
        for attribution, size in self.sum_bytes(rows, sizes).items():
            bytes_by_basis[attribution.basis] += size
        return bytes_by_basis

    def sum_confidence_bytes(self, rows: Int, sizes: Int) -> dict[Confidence, int]:
        """Return the bytes attributed without a tag, by confidence."""
        bytes_by_level = dict.fromkeys(Confidence, 0)
        for attribution, size in self.sum_bytes(rows, sizes).items():
            if attribution.confidence is not None and attribution.basis is not Basis.TAGGED:
                bytes_by_level[attribution.confidence] += size
        return bytes_by_level


def get_tenant_name(attribution: Attribution) -> str:
    """Return the name of the tenant; ``untagged`` if there is none."""
    return "untagged" if attribution.tenant is None else attribution.tenant.value


class _Ledger:
    """Collect the attributions of blocks, each distinct one once."""

    def __init__(self, blocks: int) -> None:
        self._numbers: dict[Attribution, int] = {UNKNOWN: 0}
        self.number: Int = np.zeros(blocks, dtype=np.int64)

    def assign(self, rows: Int, attribution: Attribution) -> None:
        """Attribute these blocks."""
        if len(rows):
            self.number[rows] = self._numbers.setdefault(attribution, len(self._numbers))

    def finish(self) -> BlockTenants:
        """Return the result."""
        return BlockTenants(number=self.number, attributions=tuple(self._numbers))


def assign_tenants(blocks: HeldBlocks, stacks: Stacks) -> BlockTenants:
    """Assign a tenant to every block."""
    features = compute_features(blocks, classify_stacks(stacks, blocks.stack))
    ledger = _Ledger(len(blocks))
    _apply_rules(ledger, blocks, features)
    for number, text in enumerate(blocks.tags):
        claim = parse_tag(text)
        if claim is not None:
            tenant, sub = claim
            ledger.assign(
                np.flatnonzero(blocks.tag == number),
                Attribution(
                    tenant=tenant, sub=sub, basis=Basis.TAGGED, confidence=Confidence.HIGH, reason="tag"
                ),
            )
    return ledger.finish()


def _apply_rules(ledger: _Ledger, blocks: HeldBlocks, features: Features) -> None:
    """Apply the rules, then those of the same block in the previous step, then the rules of last resort."""
    rule = find_first_rule(TENANT_RULES, features)
    for number, entry in enumerate(TENANT_RULES):
        ledger.assign(np.flatnonzero(rule == number), _make_attribution(entry, entry.confidence))
    open_rows = np.flatnonzero((rule < 0) & features.in_open_pass & features.stays)
    twin = find_previous_blocks(blocks, features)[open_rows] if len(open_rows) else open_rows
    twin_rule = np.where(twin >= 0, rule[np.maximum(twin, 0)], -1)
    for number, entry in enumerate(TENANT_RULES):
        ledger.assign(
            open_rows[twin_rule == number], _make_attribution(entry, _lower_confidence(entry.confidence))
        )
    last = find_first_rule(LAST_RESORT_RULES, features)
    for number, entry in enumerate(LAST_RESORT_RULES):
        rows = np.flatnonzero((ledger.number == 0) & (last == number))
        ledger.assign(rows, _make_attribution(entry, entry.confidence))


def _make_attribution(rule: TenantRule, confidence: Confidence) -> Attribution:
    return Attribution(
        tenant=rule.tenant, sub=rule.sub, basis=Basis.RULE, confidence=confidence, reason=rule.name
    )


def _lower_confidence(confidence: Confidence) -> Confidence:
    return Confidence.MEDIUM if confidence is Confidence.HIGH else Confidence.LOW


def sum_tenant_bytes(tenant: Int, sizes: Int) -> tuple[dict[Tenant, int], int]:
    """Return the bytes of each tenant, and the untagged bytes."""
    bytes_by_code = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(bytes_by_code, tenant, sizes)
    return {owner: int(bytes_by_code[code]) for owner, code in TENANT_CODES.items()}, int(
        bytes_by_code[UNTAGGED]
    )


def parse_tag(text: str) -> tuple[Tenant, str] | None:
    """Return the tenant and sub of a tag; None if it has no tenant."""
    if not text.startswith(TAG_PREFIX):
        return None
    tenant, _, sub = text[len(TAG_PREFIX) :].partition("/")
    try:
        return Tenant(tenant), sub[:_MAX_SUB]
    except ValueError:
        return None
