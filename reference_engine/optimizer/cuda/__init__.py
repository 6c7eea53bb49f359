"""AdamW in one CUDA kernel, compiled by NVRTC on the user's machine, without CUDA toolkit or C++ compiler.

Importing this package requires neither a GPU nor the extra ``zprof[cuda]``; ``explain_unavailable`` reports
what is missing.
"""

from zprof.reference_engine.optimizer.cuda.compilation import KernelError, explain_unavailable
from zprof.reference_engine.optimizer.cuda.launch import CudaAdamW

__all__ = ["CudaAdamW", "KernelError", "explain_unavailable"]
