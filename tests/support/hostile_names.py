"""Names that try to steer what shows them, and reports and checks in which every name is one of them."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from tests.support.hostile_run import ENDS
from tests.support.memories import HOSTILE

#: Text that a face must show and nothing may act on; ``::error::`` alone on a line is a command on GitHub.
NAMES = (
    *ENDS,
    HOSTILE,
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</style></title><style>*{display:none}</style>",
    '" onmouseover="alert(1)" x=\'1\' y=`',
    "<!-- --><details open><summary>a</summary>",
    "a ]]> b <![CDATA[ c",
    "| a | b |\n| --- | --- |",
    "`code` ``two`` ```three```",
    "```\n</details>\n# heading",
    "::error file=a.py,line=1::forged %0A::stop-commands::x",
    " ".join(["::warning::where-a-line-is-wrapped"] * 12),
    "##[error]forged ##vso[task.complete] ##teamcity[x]",
    "@team please, @org/team, someone@example.com",
    "#123 GH-4 !5 owner/repo#6 $7 ~label %milestone &epic deadbeefcafe1234567890",
    "https://evil.example www.evil.example evil.example ftp://x.y",
    "[a](https://evil.example) ![b](c.png) [d]: https://evil.example",
    "*b* _i_ **bb** ~~s~~ :tada: $x^2$ $$y$$ {{ jekyll }} {0} &amp; &#60;",
    "{{0}} {{{1}}} {2}",
    "/close this, /cc @team",
    '%"a milestone" ~"a label" [vulnerability:12]',
    "- [ ] task\n1. one\n> quote\n---\n===",
    "\\ \\` \\| \\[",
    "\x00\x01\x08\x0b\x0c\x1f\x7f\x85\x9b",
    "\ud800\udfff lone",
    "\ufffe\uffff\U0010ffff",
    "'\"=<>&;",
    "",
    " ",
)
_KEPT = frozenset({"schema"})


def poisoned(value: Any, name: str) -> Any:
    """``value`` with ``name`` for each text in it; enumerations and keys keep their meaning."""
    if isinstance(value, Enum) or not (isinstance(value, (str, Struct)) or _holds(value)):
        return value
    if isinstance(value, str):
        return name
    if isinstance(value, Mapping):
        return {key: poisoned(child, name) for key, child in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(poisoned(child, name) for child in value)
    assert not isinstance(value, type)
    changed = {
        entry.name: poisoned(getattr(value, entry.name), name)
        for entry in fields(value)
        if entry.name not in _KEPT
    }
    return replace(value, **changed)


def _holds(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list)
