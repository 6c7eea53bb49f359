"""What an engine knows about the training: facts, settings, steps and the memory that it holds."""

from importlib.util import find_spec

from zprof.base.errors import Extra, require_extra

if find_spec("torch") is None:
    require_extra(Extra.RECORD, "zprof.record")
