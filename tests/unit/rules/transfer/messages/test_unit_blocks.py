"""Names of units tell the block that they lie in, where they have a number."""

import pytest

from zprof.rules.transfer.small_messages import count_units_per_block, find_block


@pytest.mark.parametrize(
    ("unit", "block"),
    [
        ("layers.3.attn.wq", "layers.3"),
        ("layers.3", "layers.3"),
        ("model.layers.12.mlp.experts.7.w1 [pg=8]", "model.layers.12"),
        ("blocks.0 [pg=8]", "blocks.0"),
        ("h.3", "h.3"),
        ("0.attn", "0"),
        ("embedding", None),
        ("conv2d.weight", None),
        ("layers.3b.x", None),
        ("FSDP.all_gather", None),
        ("", None),
        ("a" * 5_000 + ".1", None),
    ],
)
def test_block_of(unit: str, block: str | None) -> None:
    assert find_block(unit) == block


def test_units_per_block_is_the_median_block_and_counts_a_name_once() -> None:
    parts = [f"layers.{layer}.{part}" for layer in range(3) for part in ("wq", "wk", "mlp", "norm")]
    assert count_units_per_block([*parts, *parts, "embedding", "layers.3"]) == 4
    assert count_units_per_block(["layers.0", "layers.1"]) == 1
    assert count_units_per_block(["embedding", "head"]) is None


def test_a_thousand_letters_of_a_name_are_read() -> None:
    assert find_block("a" * 900 + ".1") is not None
    assert find_block("a" * 1_100 + ".1") is None
