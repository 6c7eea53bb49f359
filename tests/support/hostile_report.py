"""A report in which every text that a run may bring is hostile."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from zprof.model.report import Report

#: What a name tries: one format each, and what steers a terminal or hides.
NAMES = {
    "element": '<img src=x onerror="alert(1)"><b>loud</b>',
    "script": "</script><script>alert(1)</script>",
    "style": "</style></title><style>*{display:none}</style>",
    "attribute": '" onmouseover="alert(1)" x=\'1\' y=`',
    "comment": "<!-- --><!--><![CDATA[ ]]> <?php ?>",
    "entity": "&lt;script&gt;&#60;b&#62;&amp;",
    "template": "{{ 7*7 }}{% raw %}{# x #}${x}",
    "markdown": "| a | `code` [x](javascript:alert(1)) ::error::x %0A",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x00\x7f\x9b31m\r\nOK",
    "hidden": "\u202egnirts\u2066 zero\u200bwidth\ufeff\u2028\u2029",
    "surrogate": "\ud800 \udfff \uffff",
    "long": "x" * 10_000,
    "wide": "層" * 5_000,
}
#: Mappings whose keys are words of zprof itself.
_OWN_KEYS = frozenset({"ledger_delta", "memory_delta", "rungs", "unclaimed", "shares"})


def poisoned(report: Report, end: str) -> Report:
    """``report`` with ``end`` behind every text and every key that is one."""
    changed: Report = _poisoned(report, end)
    timelines = tuple(  # the tenants of a timeline are zprof's own words
        replace(now, tenants=was.tenants)
        for now, was in zip(changed.memory.timelines, report.memory.timelines, strict=True)
    )
    return replace(changed, memory=replace(changed.memory, timelines=timelines))


def _poisoned(value: Any, end: str, name: str = "") -> Any:
    if isinstance(value, Enum) or not value:
        return value
    if isinstance(value, str):
        return value + end
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{entry.name: _poisoned(getattr(value, entry.name), end, entry.name) for entry in fields(value)},
        )
    if isinstance(value, Mapping):
        return {_key(key, end, name): _poisoned(item, end) for key, item in value.items()}
    return tuple(_poisoned(item, end) for item in value) if isinstance(value, tuple) else value


def _key(key: Any, end: str, name: str) -> Any:
    own = name in _OWN_KEYS or isinstance(key, Enum) or not isinstance(key, str)
    return key if own else key + end
