"""Assign a tenant to every block of a history.

The program's own tag decides, else the first rule that applies to the stack and the lifetime of the block,
else the sizes of all blocks together (``census``). Tags are written with
``torch.cuda.memory._set_memory_metadata("zprof:<tenant>[/<sub>]")``.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.attribution.block_tenants import Attribution, BlockTenants, TenantLedger
from zprof.analysis.memory.attribution.census import take_census
from zprof.analysis.memory.attribution.features import Features, compute_features, find_previous_blocks
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.attribution.origins import classify_stacks
from zprof.analysis.memory.attribution.passes import AllocationPasses
from zprof.analysis.memory.attribution.rules import (
    CAST,
    LAST_RESORT_RULES,
    TENANT_RULES,
    TenantRule,
    find_first_rule,
)
from zprof.analysis.memory.attribution.standing_state import attribute_state
from zprof.analysis.memory.attribution.succession import follow_parameters
from zprof.analysis.memory.attribution.uncertainty import lower_confidences
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.steps_and_phases import PhaseRange
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import WEIGHT_COPY, Tenant

TAG_PREFIX = "zprof:"
_MAX_SUB = 40


class AttributedHistory(Struct, frozen=True, kw_only=True):
    """The owner of every block, and the passes of the program.

    ``keeps_for_backward``: a forward without a backward keeps tensors as if one followed.
    """

    names: BlockTenants
    passes: AllocationPasses
    keeps_for_backward: bool


def attribute_history(
    blocks: HeldBlocks, stacks: StackIndex, ranges: Sequence[PhaseRange] = ()
) -> AttributedHistory:
    """Find the owner of every block; ``ranges`` are the phases that the program annotated."""
    origin = classify_stacks(stacks, blocks.stack)
    features = compute_features(blocks, origin, stacks.is_known(blocks.stack), ranges)
    ledger = TenantLedger(len(blocks))
    _apply_rules(ledger, blocks, features)
    census = take_census(blocks, features, ledger)
    attribute_state(blocks, features, ledger, census)
    if census is not None:
        follow_parameters(blocks, features, ledger, census)
    _apply_last_rules(ledger, features)
    lower_confidences(blocks, features, ledger, census, is_annotated=bool(ranges))
    # Tell autocast's copies of weights, which have half their size, from its copies of activations.
    names = ledger.get_tenants()
    weights = np.unique(blocks.requested_bytes[names.tenant == TENANT_CODES[Tenant.PARAMETERS]])
    for number, attribution in enumerate(names.attributions):
        if attribution.sub == CAST:
            rows = np.flatnonzero(names.number == number)
            copies = rows[np.isin(2 * blocks.requested_bytes[rows], weights)]
            ledger.assign(copies, replace(attribution, sub=WEIGHT_COPY))
    _apply_tags(ledger, blocks)
    return AttributedHistory(
        names=ledger.get_tenants(),
        passes=features.passes,
        keeps_for_backward=bool(features.outlives_forward.any()),
    )


def _apply_tags(ledger: TenantLedger, blocks: HeldBlocks) -> None:
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


def _apply_rules(ledger: TenantLedger, blocks: HeldBlocks, features: Features) -> None:
    """Apply the rules, then those of the same block in the previous step."""
    rule = find_first_rule(TENANT_RULES, features)
    for number, entry in enumerate(TENANT_RULES):
        ledger.assign(np.flatnonzero(rule == number), _make_attribution(entry, entry.confidence))
    open_rows = np.flatnonzero((rule < 0) & features.in_open_pass & features.stays)
    twin = find_previous_blocks(blocks, features)[open_rows] if len(open_rows) else open_rows
    twin_rule = np.where(twin >= 0, rule[np.maximum(twin, 0)], -1)
    for number, entry in enumerate(TENANT_RULES):
        lower = Confidence.MEDIUM if entry.confidence is Confidence.HIGH else Confidence.LOW
        ledger.assign(open_rows[twin_rule == number], _make_attribution(entry, lower))


def _apply_last_rules(ledger: TenantLedger, features: Features) -> None:
    """Apply the rules of last resort to what is still unknown."""
    is_unknown = ledger.get_tenants().tenant == UNTAGGED
    last = find_first_rule(LAST_RESORT_RULES, features)
    for number, entry in enumerate(LAST_RESORT_RULES):
        rows = np.flatnonzero(is_unknown & (last == number))
        ledger.assign(rows, _make_attribution(entry, entry.confidence))


def _make_attribution(rule: TenantRule, confidence: Confidence) -> Attribution:
    return Attribution(
        tenant=rule.tenant, sub=rule.sub, basis=Basis.RULE, confidence=confidence, reason=rule.name
    )


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
