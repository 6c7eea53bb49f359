"""Rules about what the host does while the device has nothing to run."""

from zprof.rules.rule import Rule

ASKED: tuple[Rule, ...] = ()
