"""Rules about what the device computes slower than it could."""

from zprof.rules.rule import Rule

ASKED: tuple[Rule, ...] = ()
