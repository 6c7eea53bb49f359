"""Whether a training of the engine was right: its losses are those without it, its states obey the law."""

from collections.abc import Sequence
from typing import Any

#: Relative: float32 differs in the order of sums; of 16 bits the third digit is what a loss is known to.
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 2e-2}


def complaints(name: str, ranks: Sequence[dict[str, Any]], dtype: str) -> list[str]:
    """What is wrong with a case, a line each."""
    errors = [f"{name}: rank {rank}: {seen['error']}" for rank, seen in enumerate(ranks) if "error" in seen]
    if errors:
        return errors
    lines = []
    for rank, seen in enumerate(ranks):
        pairs = zip(seen["losses"], seen["reference"], strict=True)
        # all(), not max(): nan is neither larger nor smaller.
        if not all(abs(mine - truth) <= TOLERANCE[dtype] * abs(truth) for mine, truth in pairs):
            lines.append(f"{name}: rank {rank}: losses are {seen['losses']}, not {seen['reference']}")
    return lines


def summary(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a case, of the rank that needs the most."""
    if any("error" in seen for seen in ranks):
        return {"error": [seen.get("error") for seen in ranks]}
    kept = {"losses": ranks[0]["losses"], "reference": ranks[0]["reference"], "kept_bytes": ranks[0]["kept"]}
    for name in ("peak_bytes", "reserved_bytes", "segments", "retries"):
        if name in ranks[0]:
            kept[name] = max(seen[name] for seen in ranks)
    return kept
