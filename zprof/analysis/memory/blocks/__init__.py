"""What the history of a CUDA allocator says: where a GPU's memory is at an instant, and whose it is.

Tables ``block`` and ``segment`` come from a recorded window or from an imported snapshot; ``samples`` and
``device`` say what stands around the allocator.
"""
