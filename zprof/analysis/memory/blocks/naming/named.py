"""The tenant of every block of a history, and what it rests on: the program's tag, a rule, or nothing."""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks
from zprof.analysis.memory.blocks.naming.features import Features, features_of
from zprof.analysis.memory.blocks.naming.rules import LAST_RESORT, RULES, Rule, first_rule
from zprof.analysis.memory.blocks.naming.tags import tag_of
from zprof.analysis.memory.blocks.naming.twins import twins_of
from zprof.analysis.memory.rank.lives import CODES, UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import PRECEDENCE, Tenant

#: Claims by number: the rules, then those of last resort, then each rule as its twin's (one step before).
_ALL: tuple[Rule, ...] = (*RULES, *LAST_RESORT)
_BY_TAG = -2
_NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """``tenant`` is a position in PRECEDENCE or UNTAGGED; ``sub`` indexes ``subs``.

    ``rule`` is the number of the rule, -1 where none applied, -2 where the program's tag says it.
    ``by_twin``: the rule was found for the same block of the step before.
    """

    tenant: Int
    sub: Int
    subs: tuple[str, ...]
    rule: Int
    by_twin: Int

    def basis_of(self, row: int) -> Basis:
        """What one block's tenant rests on."""
        rule = int(self.rule[row])
        return Basis.TAGGED if rule == _BY_TAG else Basis.UNKNOWN if rule == _NOBODY else Basis.RULE

    def basis_bytes(self, rows: Int, sizes: Int) -> dict[Basis, int]:
        """Bytes of some blocks by what their tenants rest on."""
        rule, size = self.rule[rows], sizes[rows]
        return {
            Basis.TAGGED: int(size[rule == _BY_TAG].sum()),
            Basis.RULE: int(size[rule >= 0].sum()),
            Basis.UNKNOWN: int(size[rule == _NOBODY].sum()),
        }

    def confidence_bytes(self, rows: Int, sizes: Int) -> dict[Confidence, int]:
        """Bytes of some blocks that rules name, by how sure those are."""
        held = dict.fromkeys(Confidence, 0)
        for number, rule in enumerate(_ALL):
            mine = rows[self.rule[rows] == number]
            twins = mine[self.by_twin[mine] != 0]
            held[rule.confidence] += int(sizes[mine].sum() - sizes[twins].sum())
            held[_lowered(rule.confidence)] += int(sizes[twins].sum())
        return held

    def tenant_name(self, row: int) -> str:
        """A block's tenant; ``untagged`` where nobody claims it."""
        code = int(self.tenant[row])
        return "untagged" if code == UNTAGGED else PRECEDENCE[code].value


def named(blocks: HeldBlocks, origin: Int) -> Named:
    """Name every block.  ``origin``: that of each block's stack."""
    seen = features_of(blocks, origin)
    rule, by_twin = _rules(blocks, seen)
    subs: dict[str, int] = {"": 0}
    tenants = np.array([CODES[each.tenant] for each in _ALL] + [UNTAGGED], dtype=np.int64)
    sub_codes = np.array([subs.setdefault(each.sub, len(subs)) for each in _ALL] + [0], dtype=np.int64)
    tenant, sub = tenants[rule], sub_codes[rule]
    for number, text in enumerate(blocks.tags):
        claim = tag_of(text)
        if claim is not None:
            mine = blocks.tag == number
            tenant[mine], sub[mine] = CODES[claim[0]], subs.setdefault(claim[1], len(subs))
            rule[mine], by_twin[mine] = _BY_TAG, 0
    return Named(tenant=tenant, sub=sub, subs=tuple(subs), rule=rule, by_twin=by_twin)


def _rules(blocks: HeldBlocks, seen: Features) -> tuple[Int, Int]:
    """(number of each block's rule, whether it is its twin's)."""
    rule = first_rule(RULES, seen)
    open_rows = np.flatnonzero((rule == _NOBODY) & seen.in_open_pass & seen.stays)
    twin = twins_of(blocks, seen)[open_rows] if len(open_rows) else open_rows
    by_twin = np.zeros(len(rule), dtype=np.int64)
    known = twin >= 0
    rule[open_rows[known]] = rule[twin[known]]
    by_twin[open_rows[known]] = rule[open_rows[known]] >= 0
    last = first_rule(LAST_RESORT, seen)
    rest = (rule == _NOBODY) & (last >= 0)
    rule[rest] = last[rest] + len(RULES)
    return rule, by_twin


def _lowered(confidence: Confidence) -> Confidence:
    return Confidence.MEDIUM if confidence is Confidence.HIGH else Confidence.LOW


def tenant_bytes(tenant: Int, sizes: Int) -> tuple[dict[Tenant, int], int]:
    """(bytes of each tenant, bytes of nobody)."""
    held = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(held, tenant, sizes)
    return {owner: int(held[code]) for owner, code in CODES.items()}, int(held[UNTAGGED])
