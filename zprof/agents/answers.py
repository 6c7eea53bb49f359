"""Answers of bounded size, as plain values: each number with its unit, its path in the report and its bound.

Texts come from recordings of strangers: they are shortened, and control characters are escaped.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from zprof.base.formatting import printable, printable_lines, shorten
from zprof.model.communicators import CommunicatorSign, LateRanks, describe_sign
from zprof.model.comparison import ComparedRow, SideBySide
from zprof.model.cursor import Cursor, every, get_path, read, read_range
from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.plan import Plan
from zprof.model.quantities import Aggregation, Bound, Value
from zprof.model.report import Report, RunFacts
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_NAMES

Answer = dict[str, Any]
#: In place of a bound: a figure of a model, not of a measurement.
PREDICTED = "predicted"
MAX_FINDINGS, MAX_EVIDENCE, MAX_GAPS, MAX_WAITS, MAX_ROWS = 6, 6, 8, 5, 24
_MAX_TEXT, _MAX_FIX, _MAX_RANKS = 400, 1_200, 64
#: A smaller change between two runs is not worth a row.
_MIN_CHANGE_RATIO = 0.01


def describe_run(facts: RunFacts, report: Report | None = None) -> Answer:
    """Return what was recorded; with a report also what is unknown."""
    answer: Answer = {
        "name": clean(facts.name),
        "source": facts.source,
        "world_size": facts.world_size,
        "ranks_loaded": cut(facts.ranks_loaded, _MAX_RANKS),
        "steps": cut(facts.steps, _MAX_RANKS),
        "device": clean(facts.device),
        "backend": clean(facts.backend),
        "engine": clean(facts.engine),
        "zero_stage": facts.stage,
        "settings": {clean(each.name): clean(each.value) for each in facts.settings[:MAX_ROWS]},
    }
    return answer if report is None else answer | {"gaps": list_gaps(report.gaps)}


def describe_report(report: Report) -> Answer:
    """Return verdict, ledger, waits, memory, findings and gaps."""
    return {
        "verdict": {"status": report.verdict.status.value, "sentence": clean(report.verdict.sentence)},
        "run": {"name": clean(report.run.name), "ranks": len(report.run.ranks_loaded) or None},
        "step": _list_step_terms(report),
        "collectives": _list_collectives(report),
        "waits": _list_waits(report),
        **_list_communicator_signs(report),
        "memory_of_largest_rank": _list_memory(report),
        "findings": cut([_describe_finding(report, at) for at in range(len(report.findings))], MAX_FINDINGS),
        "unexplained": [
            make_number(f"{LEDGER_NAMES.get(term, term)} that no finding explains", value)
            for term, value in _read_unclaimed(report)
        ],
        "gaps": list_gaps(report.gaps),
    }


def describe_hang(report: Report) -> Answer:
    """Return why a job is stuck: the sentence, the ranks to blame and those that wait."""
    hang = report.hang
    answer: Answer = {
        "verdict": {"status": report.verdict.status.value, "sentence": clean(report.verdict.sentence)},
        "findings": cut([_describe_finding(report, at) for at in range(len(report.findings))], MAX_FINDINGS),
        "gaps": list_gaps(report.gaps),
    }
    if hang is None:
        return answer
    return answer | {
        "status": hang.status.value,
        "class": hang.kind.value if hang.kind else None,
        "confidence": hang.confidence.value,
        "culprits": cut([each.rank for each in hang.culprits], _MAX_RANKS),
        "waiting": cut(hang.victims, _MAX_RANKS),
        "ranks_without_evidence": cut(hang.ranks_missing, _MAX_RANKS),
    }


def describe_comparison(compared: SideBySide) -> Answer:
    """Return the verdict on ``b`` against ``a``, the largest changes, and settings that differ."""
    rows = [row for section in compared.sections for row in section.rows if _has_changed(row)]
    different = [each for each in compared.settings if each.a != each.b]
    return {
        "verdict": {"status": compared.verdict.status.value, "sentence": clean(compared.verdict.sentence)},
        "a": clean(compared.a.name),
        "b": clean(compared.b.name),
        "changes": cut([_describe_change(row) for row in rows], MAX_ROWS),
        "settings": cut(
            [
                {"name": clean(each.name), "a": clean(str(each.a)), "b": clean(str(each.b))}
                for each in different
            ],
            MAX_ROWS,
        ),
    }


def describe_plan(plan: Plan) -> Answer:
    """Return the schemes of a planned job: what fits, peak memory and step time of each."""
    place = Cursor(plan)
    rows = []
    for at, row in enumerate(plan.rows):
        numbers = [_predict("peak memory of a device", place.rows[at].peak_bytes)]
        if row.step is not None:
            numbers.append(_predict("step", place.rows[at].step.wall_ns))
        rows.append({"scheme": row.scheme.value, "fits": row.fits, "tight": row.tight, "numbers": numbers})
    return {"schemes": cut(rows, MAX_ROWS), "gaps": list_gaps(plan.gaps)}


def _predict(what: str, place: Cursor) -> Answer:
    return make_number(what, read(place)) | {"bound": PREDICTED}


def make_number(what: str, value: Value) -> Answer:
    """Return a number with its unit, text, path and bound; unknown is None."""
    answer: Answer = {
        "what": clean(what),
        "value": value.number,
        "unit": value.unit.value,
        "text": value.text,
        "path": [str(leaf) for leaf in value.leaves],
        "bound": value.bound.value,
    }
    if value.how is not Aggregation.LEAF:
        answer["computed_as"] = value.how.value
    return answer if value.low is None else answer | {"low": value.low}


def clean(text: str, most: int = _MAX_TEXT) -> str:
    """Return a text of bounded length without control characters."""
    return shorten(printable(text), most)


def cut(entries: Sequence[Any], most: int) -> Answer:
    """Return the first entries, and how many are left out."""
    return {"shown": list(entries[:most]), "left_out": max(0, len(entries) - most)}


def list_gaps(gaps: Iterable[Gap]) -> Answer:
    """Return what is unknown, and what would tell."""
    return cut(
        [
            {
                "what": clean(gap.what),
                "rank": gap.rank,
                "reason": clean(gap.reason),
                "remedy": clean(gap.remedy),
            }
            for gap in gaps
        ],
        MAX_GAPS,
    )


def _list_step_terms(report: Report) -> list[Answer]:
    if not report.time.per_rank:
        return []
    ranks = every(Cursor(report).time.per_rank)
    return [
        make_number(f"{name}, mean of the ranks", read(getattr(ranks, term), how=Aggregation.MEAN))
        for term, name in (("wall_ns", "step"), *LEDGER_NAMES.items())
    ]


def _list_collectives(report: Report) -> Answer:
    """Return the collectives with the most exposed time, by kind, group and element type, per step."""
    found = sorted(enumerate(report.time.collectives), key=lambda pair: -pair[1].exposed_ns)
    places = Cursor(report).time.collectives
    return cut(
        [
            {
                "kind": clean(entry.kind),
                "group": clean(entry.group),
                "dtype": clean(entry.dtype),
                "numbers": [
                    make_number("exposed wait", read(places[at].exposed_wait_ns)),
                    make_number("exposed transfer", read(places[at].exposed_transfer_ns)),
                ],
            }
            for at, entry in found
            if entry.exposed_ns > 0
        ],
        MAX_WAITS,
    )


def _list_communicator_signs(report: Report) -> Answer:
    """Return late ranks, slow communicators and slow periods of a recording of NCCL's Inspector."""
    found = report.time.communicators
    if found is UNSET:
        return {}
    signs: list[CommunicatorSign] = [*found.late, *found.slow, *found.periods]
    signs.sort(key=lambda each: -each.cost_ns)
    waits_for = [each.waits_for if isinstance(each, LateRanks) else "" for each in signs]
    described = [
        {"sentence": clean(describe_sign(sign))}
        | ({"may_wait_for_late_ranks_in": clean(other)} if other else {})
        for sign, other in zip(signs, waits_for, strict=True)
    ]
    return {"communicators": cut(described, MAX_WAITS)}


def _list_waits(report: Report) -> Answer:
    """Return who waits for whom: the ranks that caused most exposed wait, and where each delay began."""
    shares = report.time.blame.per_rank if report.time.blame is not None else ()
    found = sorted(enumerate(shares), key=lambda pair: -pair[1].exposed_wait_ns)
    places = Cursor(report).time.blame.per_rank
    waits = [
        {
            "late_rank": blame.rank,
            "waiting_ranks": blame.waiting_ranks,
            "began_on_rank": max(blame.origins, key=lambda rank: blame.origins[rank], default=None),
            "reason": max(blame.reasons, key=lambda reason: blame.reasons[reason], default=None),
            "numbers": [
                make_number(
                    "exposed wait of each waiting rank per step", read(places[at].exposed_wait_per_rank_ns)
                )
            ],
        }
        for at, blame in found
        if blame.exposed_wait_ns > 0
    ]
    return cut(waits, MAX_WAITS)


def _list_memory(report: Report) -> Answer | None:
    if not report.memory.per_rank:
        return None
    at = max(range(len(report.memory.per_rank)), key=lambda place: report.memory.per_rank[place].peak_bytes)
    rank, place = report.memory.per_rank[at], Cursor(report).memory.per_rank[at]
    tenants = [tenant for tenant in DISPLAY_ORDER if not rank.is_unknown(tenant)]
    return {
        "rank": rank.rank,
        "numbers": [
            make_number("peak", read(place.peak_bytes)),
            *(make_number(tenant.value, read(place.tenants[tenant.value])) for tenant in tenants),
            make_number("untagged", read(place.untagged_bytes)),
        ],
    }


def _describe_finding(report: Report, at: int) -> Answer:
    finding, place = report.findings[at], Cursor(report).findings[at]
    numbers = []
    if report.time.per_rank:
        numbers.append(make_number("saving of the fix per step", read_range(place.saving_ns)))
    if finding.saving_bytes is not None:
        numbers.append(make_number("saving of the fix, largest rank", read_range(place.saving_bytes)))
    return {
        "id": finding.id,
        "cause": finding.cause,
        "confidence": finding.confidence.value,
        "severity": finding.severity.value,
        "sentence": clean(finding.sentence),
        "numbers": numbers,
        "evidence": cut(_list_evidence(finding, place), MAX_EVIDENCE),
        "fix": shorten("\n".join(printable_lines(finding.fix)), _MAX_FIX),
        "disprove": clean(finding.disprove),
    }


def _list_evidence(finding: Finding, place: Cursor) -> list[Answer]:
    return [
        {
            "what": clean(each.what),
            "rank": each.rank,
            "value": each.value,
            "unit": each.unit,
            "path": [str(get_path(place.evidence[at].value))],
            "bound": Bound.EXACT.value,
        }
        for at, each in enumerate(finding.evidence)
    ]


def _read_unclaimed(report: Report) -> list[tuple[str, Value]]:
    return [(term, read(Cursor(report).unclaimed[term])) for term in report.unclaimed]


def _has_changed(row: ComparedRow) -> bool:
    before, after = row.a, row.b
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return before != after
    return abs(after - before) > _MIN_CHANGE_RATIO * max(abs(before), abs(after))


def _describe_change(row: ComparedRow) -> Answer:
    a, b = (clean(side) if isinstance(side, str) else side for side in (row.a, row.b))
    return {"what": clean(row.name), "unit": row.unit, "path": [row.leaf] if row.leaf else [], "a": a, "b": b}
