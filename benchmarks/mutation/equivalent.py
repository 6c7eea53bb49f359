"""Mutants that no test can kill, because they change nothing: each with the reason."""

_NEVER_EQUAL = "no float near 1, less 1, is this to the last bit"
_RULES = "zprof/rules"

#: The key of the mutant (file: change), and why it is the same program.
EQUIVALENT: dict[str, str] = {
    "zprof/rules/claims.py: _SURENESS: 0  ->  1": "notes are ordered behind all others before",
    "zprof/rules/claims.py: _SURENESS: 1  ->  0": "the same",
    "zprof/rules/claims.py: _SURENESS: 2  ->  3": "only the order of the three counts",
    "zprof/rules/claims.py: max(surer) > own  ->  >=": "no finding explains itself",
    f"{_RULES}/device/lost_compute_efficiency.py: "
    "abs(seen.count_ratio - 1) > _SAME_COUNT_RATIO  ->  >=": _NEVER_EQUAL,
    f"{_RULES}/device/lost_compute_efficiency.py: "
    "abs(seen.work.b / seen.work.a - 1) > 0.01  ->  >=": _NEVER_EQUAL,
    f"{_RULES}/volume/longer_inputs.py: "
    "abs(_over_others(counts, rank) - 1) <= _SAME_COUNT_RATIO  ->  <": _NEVER_EQUAL,
    f"{_RULES}/volume/padding.py: -0.01 < ratio  ->  <=": _NEVER_EQUAL,
    f"{_RULES}/volume/uneven_shapes.py: known.ratio < _PROVEN_RATIO  ->  <=": _NEVER_EQUAL,
    f"{_RULES}/waiting/straggler_rank.py: "
    "suspect.chance < chance  ->  <=": "0.1 was left before, and no sum of exponentials is 0.025",
    f"{_RULES}/transfer/messages/expected.py: _FAR: -1  ->  -2": "the three need only differ",
    f"{_RULES}/transfer/messages/expected.py: _FAR: 1  ->  2": "the three need only differ",
    f"{_RULES}/transfer/messages/expected.py: "
    "group in self._spans  ->  not in": "a look-up of what spans() says as well",
    f"{_RULES}/claims.py: _SURENESS: 0  ->  1": "a note stands behind all that is surer already",
    f"{_RULES}/claims.py: _SURENESS: 1  ->  0": "a note stands behind all that is surer already",
    f"{_RULES}/claims.py: _SURENESS: 2  ->  3": "the three are only compared",
    f"{_RULES}/claims.py: max(surer) > own  ->  >=": "nothing is surer than itself",
}
