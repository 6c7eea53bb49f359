"""A ZeRO engine to read and to measure: stages 0 to 3 over plain torch.distributed.

Read it in this order: ``flat_unit`` (what a stage shards, and how parameters are stored), ``gather`` (when
they are gathered and released), ``gradients`` (``storage``, ``reductions``, ``reducer``: how gradients become
means), ``optimizer``, and ``engine``, which puts them together.  ``comm`` is the network and the ranges that
a profiler sees, ``train`` a whole program.
"""

if __name__ == "reference_engine":
    raise ImportError("import zprof.reference_engine, not reference_engine")

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.engine import ZeroFacts, ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer

__all__ = ["ZeroConfig", "ZeroFacts", "ZeroModel", "ZeroOptimizer", "zero"]
