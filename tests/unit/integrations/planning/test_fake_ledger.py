"""The ledger of storages: sizes, lives, owners and the peak, on tensors without memory."""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zprof.integrations.planning.storage_ledger import StorageLedger, tap_storages
from zprof.model.tenants import Tenant


@pytest.fixture
def ledger() -> Iterator[StorageLedger]:
    made = StorageLedger()
    with FakeTensorMode(), tap_storages(made):
        yield made


def test_views_live_with_their_storage(ledger: StorageLedger) -> None:
    whole = torch.empty(1 << 38)
    parts = [whole[:50], whole.view(2, -1), whole.detach()]
    del whole
    assert ledger.live_bytes == 1 << 40
    del parts
    assert ledger.live_bytes == 0


def test_the_peak_is_the_most_at_once_since_the_begin(ledger: StorageLedger) -> None:
    before = torch.empty(1000)
    del before
    kept = torch.empty(10)
    ledger.reset_peak()
    ledger.location = "there"
    gone = torch.empty(20)
    del gone
    last = torch.empty(5)
    assert (ledger.peak.bytes, ledger.peak.location) == (120, "there")
    assert ledger.measure_tenants_at(ledger.peak.time) == {Tenant.TEMPORARY_BUFFERS: 120}
    del kept, last


def test_a_resized_storage_lives_again_and_stays_gathered(ledger: StorageLedger) -> None:
    full = torch.empty(100)
    ledger.mark_gathered(full)
    full.untyped_storage().resize_(0)
    assert ledger.live_bytes == 0
    full.untyped_storage().resize_(400)
    assert ledger.measure_tenants_at(ledger.time) == {Tenant.COMMUNICATION_BUFFERS: 400}


def test_the_strongest_claim_that_holds_wins(ledger: StorageLedger) -> None:
    held = torch.empty(10)
    ledger.claim(held, Tenant.ACTIVATIONS)
    born = ledger.time
    other = torch.empty(1)
    ledger.claim(held, Tenant.GRADIENTS, backdated=False)
    assert ledger.measure_tenants_at(born) == {Tenant.ACTIVATIONS: 40}
    assert ledger.measure_tenants_at(ledger.time)[Tenant.GRADIENTS] == 40
    ledger.claim(held, Tenant.PARAMETERS)
    assert ledger.measure_tenants_at(born) == {Tenant.PARAMETERS: 40}
    del other


def test_what_autograd_saves_is_an_activation_until_the_backward(ledger: StorageLedger) -> None:
    weight = torch.empty(8, 8, requires_grad=True)
    ledger.claim(weight, Tenant.PARAMETERS)
    x = torch.empty(4, 8)
    loss = (y := (x @ weight).exp()).sum()
    # x for the weight's gradient, the result of exp for its own; the product is gone.
    assert ledger.measure_tenants_at(ledger.time)[Tenant.ACTIVATIONS] == 2 * 4 * 8 * 4
    del x, y
    loss.backward()  # type: ignore[no-untyped-call]
    assert Tenant.ACTIVATIONS not in ledger.measure_tenants_at(ledger.time)


def test_what_is_left_unclaimed_is_kept_for_the_backward(ledger: StorageLedger) -> None:
    before = torch.empty(1)
    since = ledger.time
    kept, gone = torch.empty(2), torch.empty(4)
    del gone
    ledger.claim_activations_since(since)
    assert ledger.measure_tenants_at(ledger.time) == {Tenant.ACTIVATIONS: 8, Tenant.TEMPORARY_BUFFERS: 4}
    del before, kept


def test_most_bytes_of_a_tenant_within_spans(ledger: StorageLedger) -> None:
    first = ledger.time
    one = torch.empty(10)
    middle = ledger.time
    two = torch.empty(20)
    del one
    end = ledger.time
    assert ledger.measure_tenant_peak(Tenant.TEMPORARY_BUFFERS, [(first, middle)]) == 40
    assert ledger.measure_tenant_peak(Tenant.TEMPORARY_BUFFERS, [(middle, end)]) == 120
    assert ledger.measure_tenant_peak(Tenant.ACTIVATIONS, [(first, end)]) == 0
    del two
