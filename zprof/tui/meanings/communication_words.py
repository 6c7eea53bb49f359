"""Sentences that several meanings of communication share."""

MEAN = "Sum of a step, mean over the loaded ranks of its group."
STEADY = (
    "A finding's figure is without the first collective of each group in the window, which carries the start "
    "of the profiler."
)
EXPOSED = (
    "A collective runs and holds this rank up: on a device where no compute kernel runs, on a CPU rank "
    "where the main thread waits. Of several at once one is charged, the one waited for or in front, so "
    "that they sum to their union."
)
BUS = (
    "Bytes that each link of a ring has to carry: the algorithm bandwidth times 2(N-1)/N for an all-reduce, "
    "(N-1)/N for all-gather, reduce-scatter and all-to-all, 1 for broadcast, reduce, send and recv. This is "
    "what to hold against the link's own figure, whatever the number of ranks N."
)
INTRINSIC = (
    "From the last rank's start to the first rank's end, on the common clock: the most that network work "
    "took. The first collective of a window, and what the clocks do not resolve, are left out. Median."
)
