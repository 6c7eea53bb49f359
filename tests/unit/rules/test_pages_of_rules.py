"""Every finding has its page, and the page is of that finding."""

from pathlib import Path

import pytest

from zprof.model.findings import FINDING_IDS, Cause
from zprof.rules.registry import all_rules
from zprof.rules.rule import Rule

DOCS = Path(__file__).parents[3] / "docs/findings"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.cause.value)
def test_page(rule: Rule) -> None:
    cause = rule.cause
    page = (DOCS / f"{FINDING_IDS[cause]}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {FINDING_IDS[cause]} {cause.value}\n")
    for heading in ("How it is found", "What to change", "How to disprove it"):
        assert f"\n## {heading}\n" in page


def test_every_cause_has_one_rule_and_one_id() -> None:
    assert sorted(rule.cause for rule in all_rules()) == sorted(Cause)
    assert len(set(FINDING_IDS.values())) == len(Cause)
