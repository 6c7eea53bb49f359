"""Find options of accelerate's FSDP configuration that its FSDP2 ignores.

accelerate is never imported here. Its launcher and the Trainer of transformers pass the configuration as
environment variables, of which accelerate 1.15 reads ``FSDP_FORWARD_PREFETCH`` only for FSDP1 (verl #6317).
"""

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

from zprof.model.training import EngineSetting, SettingEffect

_MODULE = "accelerate.utils.dataclasses"
_PLUGIN_CLASS = "FullyShardedDataParallelPlugin"
_VARIABLE = "FSDP_FORWARD_PREFETCH"
#: What accelerate takes for true.
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FSDP2 = 2


def list_ignored_settings() -> Iterator[EngineSetting]:
    """Yield the options that a live FSDP2 configuration of accelerate has and that change nothing."""
    if _MODULE not in sys.modules:
        return
    # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
    plugins = [value for value in gc.get_objects() if type(value).__name__ == _PLUGIN_CLASS]
    if any(_prefetches(plugin) for plugin in plugins if getattr(plugin, "fsdp_version", None) == _FSDP2):
        yield EngineSetting(name="forward_prefetch", value="True", effect=SettingEffect.IGNORED_BY_FSDP2)


def _prefetches(plugin: Any) -> bool:
    variable = os.environ.get(_VARIABLE, "").lower()
    return bool(getattr(plugin, "forward_prefetch", None)) or variable in _TRUE
