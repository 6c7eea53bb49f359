"""Rules about what moves more often, or in more bytes, than the stage needs."""

from zprof.rules.rule import Rule

ASKED: tuple[Rule, ...] = ()
