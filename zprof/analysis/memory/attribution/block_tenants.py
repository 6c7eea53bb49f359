"""Define who owns each block of a history and why."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

#: Confidences, highest first.
LEVELS = tuple(Confidence)


class Attribution(Struct, frozen=True, kw_only=True):
    """Why a block belongs to a tenant; ``reason`` is the rule's name. None in another field means unknown."""

    tenant: Tenant | None = None
    sub: str = ""
    basis: Basis = Basis.UNKNOWN
    confidence: Confidence | None = None
    reason: str = ""


UNKNOWN = Attribution()


class BlockTenants(Struct, frozen=True, kw_only=True):
    """Every block's attribution: ``number`` is a position in ``attributions``."""

    number: Int
    attributions: tuple[Attribution, ...]

    @property
    def tenant(self) -> Int:
        """Return each block's position in PRECEDENCE, or UNTAGGED."""
        codes = [UNTAGGED if a.tenant is None else TENANT_CODES[a.tenant] for a in self.attributions]
        return np.array(codes, dtype=np.int64)[self.number]

    @property
    def confidence(self) -> Int:
        """Return each block's confidence: 0 high, 1 medium, 2 low, 3 unknown. A tag is high."""
        levels = [
            len(LEVELS) if a.confidence is None else LEVELS.index(a.confidence) for a in self.attributions
        ]
        return np.array(levels, dtype=np.int64)[self.number]

    def get(self, row: int) -> Attribution:
        """Return one block's attribution."""
        return self.attributions[int(self.number[row])]

    def sum_bytes(self, rows: Int, sizes: Int) -> dict[Attribution, int]:
        """Return the blocks' bytes by attribution, largest first."""
        totals = np.zeros(len(self.attributions), dtype=np.int64)
        np.add.at(totals, self.number[rows], sizes[rows])
        order = [int(index) for index in np.argsort(-totals, kind="stable") if totals[index]]
        return {self.attributions[index]: int(totals[index]) for index in order}

    def sum_basis_bytes(self, rows: Int, sizes: Int) -> dict[Basis, int]:
        """Return the blocks' bytes by the basis of their tenants."""
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

    def list_unknown_tenants(self) -> tuple[Tenant, ...]:
        """Return the tenants that never own a block; none if the program tags its memory."""
        used = [self.attributions[number] for number in np.unique(self.number).tolist()]
        if any(attribution.basis is Basis.TAGGED for attribution in used):
            return ()
        owners = {attribution.tenant for attribution in used}
        return tuple(tenant for tenant in Tenant if tenant not in owners)


def get_tenant_name(attribution: Attribution) -> str:
    """Return the tenant's name; ``untagged`` without a tenant."""
    return "untagged" if attribution.tenant is None else attribution.tenant.value


class TenantLedger:
    """Collects block attributions, storing each distinct attribution once; later calls overwrite earlier
    ones.
    """

    def __init__(self, blocks: int) -> None:
        self._numbers: dict[Attribution, int] = {UNKNOWN: 0}
        self._number: Int = np.zeros(blocks, dtype=np.int64)

    def assign(self, rows: Int, attribution: Attribution) -> None:
        """Attribute these blocks."""
        if len(rows):
            self._number[rows] = self._numbers.setdefault(attribution, len(self._numbers))

    def limit(self, rows: Int, confidence: Confidence) -> None:
        """Cap the confidence of these blocks' attributions at ``confidence``."""
        for number, attribution in enumerate(tuple(self._numbers)):
            level = attribution.confidence
            if level is not None and LEVELS.index(level) < LEVELS.index(confidence):
                self.assign(rows[self._number[rows] == number], replace(attribution, confidence=confidence))

    def get_tenants(self) -> BlockTenants:
        """Return the attributions collected so far."""
        return BlockTenants(number=self._number.copy(), attributions=tuple(self._numbers))
