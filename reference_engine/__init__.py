"""A ZeRO engine to read and to measure: stages 0 to 3 over plain torch.distributed."""

if __name__ == "reference_engine":
    raise ImportError("import zprof.reference_engine, not reference_engine")

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.engine import ZeroModel, zero
from zprof.reference_engine.facts import ZeroFacts
from zprof.reference_engine.optimizer import ZeroOptimizer

__all__ = ["ZeroConfig", "ZeroFacts", "ZeroModel", "ZeroOptimizer", "zero"]
