"""A saving is no surer than the step that it is taken from: its range is as wide as the steps' own noise.

Who applies a fix records again, and compares two means.  By what two such means differ without any fix
(``time.step_noise_ns``) a range is widened at each end, and by a quarter of that end at most: a noisy run
must not turn a note into a large saving.  Where the noise is not known, nothing is widened.
"""

from dataclasses import replace

from zprof.model.findings import Finding

_MOST_RATIO = 0.25


def widened(finding: Finding, step_noise_ns: int | None) -> Finding:
    """The finding with the noise of the run in its saving."""
    low, high = finding.saving_ns
    noise = step_noise_ns or 0
    low = int(low - min(noise, _MOST_RATIO * low))
    return replace(finding, saving_ns=(low, int(high + min(noise, _MOST_RATIO * high))))
