"""Sum comparisons by variant, and print them."""

from collections.abc import Sequence
from typing import Any

from benchmarks.snapshot_truth.compare import LEVELS, MomentComparison, SnapshotComparison

_MIB = 1 << 20
_MAX_SHOWN = 12


def summarize(comparisons: Sequence[SnapshotComparison]) -> dict[str, dict[str, Any]]:
    """Return the shares of bytes by level and what is wrong, by variant; the last one is ``all``."""
    variants = dict.fromkeys(sorted(each.variant for each in comparisons))
    groups = {name: [each for each in comparisons if each.variant == name] for name in variants}
    return {name: _sum_group(group) for name, group in (*groups.items(), ("all", list(comparisons)))}


def _sum_group(group: Sequence[SnapshotComparison]) -> dict[str, Any]:
    summed: dict[str, Any] = {
        "snapshots": len(group),
        "errors": sum(bool(each.error) for each in group),
        "peak_differs": [each.seed for each in group if each.peak[0] != each.peak[1]],
        "reserved_differs": [each.seed for each in group if each.reserved[0] != each.reserved[1]],
        "unmatched_blocks": sum(each.unmatched for each in group),
    }
    for moment in ("at_peak", "at_end"):
        parts: list[MomentComparison] = [getattr(each, moment) for each in group]
        total = sum(sum(part.bytes_by_level.values()) for part in parts)
        levels = {level: sum(part.bytes_by_level.get(level, 0) for part in parts) for level in LEVELS}
        wrong = {level: sum(part.wrong_bytes.get(level, 0) for part in parts) for level in LEVELS[:3]}
        errors = [_measure_sure_error(part) for part in parts]
        summed[moment] = {
            "bytes": total,
            "share_by_level": {level: round(size / max(total, 1), 4) for level, size in levels.items()},
            "wrong_bytes": wrong,
            "wrong_sure_seeds": [
                each.seed for each, part in zip(group, parts, strict=True) if part.wrong_bytes.get("sure")
            ],
            "max_sure_tenant_error": max(errors, default=0.0),
        }
    return summed


def _measure_sure_error(moment: MomentComparison) -> float:
    """Return the largest relative error of a tenant of which each byte is sure."""
    errors = [
        abs(said - true) / max(true, said, 1)
        for name, (true, said) in moment.tenants.items()
        if name in moment.sure_tenants
    ]
    return round(max(errors, default=0.0), 4)


def has_failed(comparisons: Sequence[SnapshotComparison]) -> bool:
    """Whether a name is sure and wrong, or a peak differs, or the product failed."""
    return any(
        each.error
        or each.peak[0] != each.peak[1]
        or each.reserved[0] != each.reserved[1]
        or each.at_peak.wrong_bytes.get("sure")
        or each.at_end.wrong_bytes.get("sure")
        for each in comparisons
    )


def format_summary(summary: dict[str, dict[str, Any]], comparisons: Sequence[SnapshotComparison]) -> str:
    """Return a table by variant, and the largest wrong blocks."""
    head = f"{'at the peak, % of bytes':24}{'n':>4}{'sure':>7}{'likely':>7}{'guess':>7}{'untag':>7}"
    lines = [f"{head}  wrong MiB: sure, likely, guess"]
    for name, row in summary.items():
        share, wrong = row["at_peak"]["share_by_level"], row["at_peak"]["wrong_bytes"]
        shares = "".join(f"{100 * share[level]:7.1f}" for level in LEVELS)
        sizes = "".join(f"{wrong[level] / _MIB:9.2f}" for level in LEVELS[:3])
        notes = "".join(
            f" {what} {row[key] if isinstance(row[key], int) else row[key][:3]}"
            for what, key in (
                ("errors", "errors"), ("PEAK", "peak_differs"), ("RESERVED", "reserved_differs"),
                ("UNMATCHED", "unmatched_blocks"),
            )
            if row[key]
        )  # fmt: skip
        lines.append(f"{name:24}{row['snapshots']:4}{shares}  {sizes}{notes}")
    faulty = [
        each
        for each in comparisons
        if each.at_peak.wrong_bytes.get("sure") or each.at_end.wrong_bytes.get("sure")
    ]
    error = 100 * summary["all"]["at_peak"]["max_sure_tenant_error"]
    lines.append("")
    lines.append(f"wrong and sure: {len(faulty)} snapshots: {[each.seed for each in faulty][:40]}")
    lines.append(f"largest error of a tenant that is sure: {error:.1f} %")
    for each in faulty[:_MAX_SHOWN]:
        lines += _format_wrong(each)
    for each in [each for each in comparisons if each.error][:3]:
        lines.append(f"seed {each.seed} ({each.variant}): {each.error}")
    return "\n".join(lines)


def _format_wrong(comparison: SnapshotComparison) -> list[str]:
    blocks = [
        block
        for block in (*comparison.at_peak.wrong_blocks, *comparison.at_end.wrong_blocks)
        if block["level"] == "sure"
    ]
    unique = {(block["alloc_entry"], block["bytes"]): block for block in blocks}
    lines = [f"seed {comparison.seed} ({comparison.variant}): {comparison.options}"]
    for block in list(unique.values())[:3]:
        lines.append(
            f"  {block['bytes']:>12,} B is {block['true']}, said {block['said']}; "
            f"born in {block['born_in']}, entry {block['alloc_entry']}"
        )
        lines += [f"      {frame}" for frame in block["stack"][:4]]
    return lines


def format_groups(comparison: SnapshotComparison) -> str:
    """Return the groups of one snapshot at its peak."""
    lines = [
        f"seed {comparison.seed}, {comparison.variant}: {comparison.options}",
        f"peak true {comparison.peak[0]:,} said {comparison.peak[1]:,}; "
        f"reserved true {comparison.reserved[0]:,} said {comparison.reserved[1]:,}; "
        f"unmatched {comparison.unmatched}",
        f"{'bytes':>14}{'blocks':>7}{'before':>7}  {'true':34}{'said':24}{'level':10}judged",
    ]
    if comparison.error:
        return "\n".join([*lines[:1], comparison.error])
    for group in comparison.groups:
        lines.append(
            f"{group['bytes']:>14,}{group['blocks']:>7}{group['before']:>7}  {group['true']:34}"
            f"{group['said']:24}{group['level']:10}{group['judged']}"
        )
        lines += [f"{'':30}{frame}" for frame in group["stack"][:3]]
    return "\n".join(lines)
