"""AdamW in one CUDA kernel, compiled on the user's machine by NVRTC: no CUDA toolkit, no C++ compiler.

Importing this package needs neither a GPU nor the extra ``zprof[cuda]``; ``explain_unavailable`` says what is
missing.
"""

from zprof.reference_engine.optimizer.cuda.compilation import KernelError, explain_unavailable
from zprof.reference_engine.optimizer.cuda.launch import CudaAdamW

__all__ = ["CudaAdamW", "KernelError", "explain_unavailable"]
