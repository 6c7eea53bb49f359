"""A training on a device is right when its losses are those without the engine."""

from typing import Any

from benchmarks.device.engine import find_case_faults, summarize_case


def seen(**changed: Any) -> dict[str, Any]:
    return {"losses": [6.0, 5.0], "reference": [6.0, 5.0], "kept": [1, 1, 2], "peak_bytes": 10} | changed


def test_equal_losses_are_fine() -> None:
    assert find_case_faults("case", [seen(), seen(losses=[6.0, 5.0005])], "float32") == []


def test_other_losses_an_error_and_nan_are_told() -> None:
    assert len(find_case_faults("case", [seen(losses=[6.0, 5.1])], "float32")) == 1
    assert len(find_case_faults("case", [seen(losses=[6.0, float("nan")])], "bfloat16")) == 1
    assert find_case_faults("case", [{"error": "gone"}, seen()], "float32") == ["case: rank 0: gone"]


def test_16_bits_may_be_off_in_the_third_digit_only() -> None:
    assert find_case_faults("case", [seen(losses=[6.0, 5.05])], "bfloat16") == []
    assert find_case_faults("case", [seen(losses=[6.0, 5.2])], "bfloat16") != []


def test_a_summary_is_of_the_rank_that_needs_most() -> None:
    assert summarize_case([seen(peak_bytes=10), seen(peak_bytes=12)])["peak_bytes"] == 12
    assert summarize_case([seen(), {"error": "gone"}]) == {"error": [None, "gone"]}
