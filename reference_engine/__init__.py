"""A readable, measurable ZeRO engine: stages 0 to 3 on plain torch.distributed.

Reading order: ``flat_unit`` (what a stage shards, and how parameters are stored), ``gather`` (when they are
gathered and released), ``gradients`` (``reducer``, ``unit_gradients``: when and how gradients are averaged
over the ranks), ``optimizer``, and ``engine``, which combines them.  ``comm`` has the collectives and the
ranges that a profiler sees; ``train`` is a complete training program.
"""

if __name__ == "reference_engine":
    raise ImportError("import zprof.reference_engine, not reference_engine")

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.engine import ZeroFacts, ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer

__all__ = ["ZeroConfig", "ZeroFacts", "ZeroModel", "ZeroOptimizer", "zero"]
