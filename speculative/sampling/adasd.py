"""AdaSD's acceptance (arXiv 2512.11280): a draft token stands where the two laws are near one another.

LOSSY: it lets tokens stand that the exact test (acceptance.py) would reject, and the other way round, so the output's
law is not the target's. Nothing uses it unless a request asks for it by name. No torch here.

The number of a token is the Jensen-Shannon distance d of the two laws at its position (divergence.py). Its verdict:

- *midpoint* (version 1 of the paper): it stands iff d < T_V, `T_V` being the mean of the mean distance of tokens that
  stood and the mean distance of those that fell, over the request so far;
- *bayes* (version 2): it stands with probability `P(A|d) = f_A(d) P(A) / (f_A(d) P(A) + f_R(d) P(R))`, where f_A, f_R
  are Gaussian kernel densities (Silverman's bandwidth) of the distances of either group.

Where the paper is silent:

- priors are the groups' shares of all tokens judged;
- until both groups are usable (midpoint: one distance each; bayes: two different ones each) the exact test decides;
- d = 0 stands and d = 1 falls, and neither enters a density. At temperature 0 the laws are plain softmax rows, which
  are never equal, and "0" and "1" have a tolerance of 1e-3;
- which group a distance joins is decided by the exact test, not by AdaSD's own verdict, because verdicts that learn
  from themselves drift; `AdasdLabels.SELF` is the literal reading;
- *floor*: a token that the target's law excludes always falls. d is finite there, so without the floor the output could
  have tokens that the target never gives. At temperature 0 that law is the plain softmax row, like the distance's;
- what is learnt from a chunk counts from the next chunk on. Densities rest on the newest 256 distances of a group, so
  that a token's verdict costs the same however long the answer is.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from speculative.sampling import counter
from speculative.sampling.acceptance import stands
from speculative.sampling.counter import Stream
from speculative.sampling.types import AdasdLabels, AdasdOptions, AdasdVariant

MAX_DISTANCES = 256
"""Newest distances of a group that its density rests on."""
RAW_TOLERANCE = 1e-3
"""Of "0" and "1" for distances of plain softmax rows."""
_LEAST_BANDWIDTH = 1e-6


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one draft token. `possible`: the target's law, as the distance sees it, does not exclude it."""

    draft_prob: float
    target_prob: float
    distance: float
    possible: bool


@dataclass(slots=True)
class DistanceGroup:
    """The distances of all tokens that stood, or of all that fell."""

    count: int = 0
    total: float = 0.0
    inner: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DISTANCES))
    """The newest of those that are neither 0 nor 1."""

    def add(self, distance: float, *, is_inner: bool) -> None:
        """Takes one."""
        self.count += 1
        self.total += distance
        if is_inner:
            self.inner.append(distance)

    @property
    def mean(self) -> float:
        """Mean distance; there must be one."""
        return self.total / self.count

    @property
    def spread_out(self) -> bool:
        """Whether there are two different distances, so that a density exists."""
        return bool(self.inner) and any(each != self.inner[0] for each in self.inner)

    def log_density(self, distance: float) -> float:
        """Logarithm of the kernel density at `distance`; needs `spread_out`.

        Bandwidth `sigma (3 n / 4)^(-1/5)`, sigma being the sample's standard deviation (Silverman 1986, eq. 3.28).
        """
        size = len(self.inner)
        bandwidth: float = max(_LEAST_BANDWIDTH, statistics.stdev(self.inner) * (0.75 * size) ** -0.2)
        exponents = [-0.5 * ((distance - each) / bandwidth) ** 2 for each in self.inner]
        top: float = max(exponents)
        kernels = math.fsum(math.exp(each - top) for each in exponents)
        return top + math.log(kernels / (size * bandwidth * math.sqrt(2.0 * math.pi)))


class Adasd:
    """The acceptance of one session; learns from every chunk. `raw`: distances are of plain softmax rows."""

    def __init__(self, options: AdasdOptions, *, raw: bool) -> None:
        self._options = options
        self._tolerance = RAW_TOLERANCE if raw else 0.0
        self._stood = DistanceGroup()
        self._fell = DistanceGroup()

    @property
    def threshold(self) -> float | None:
        """T_V of the midpoint rule; None while a group is empty."""
        if not (self._stood.count and self._fell.count):
            return None
        return (self._stood.mean + self._fell.mean) / 2.0

    def probability(self, distance: float) -> float | None:
        """P(A|d) of the Bayesian rule; None while a group has no density."""
        if not (self._stood.spread_out and self._fell.spread_out):
            return None
        stood = self._stood.log_density(distance) + math.log(self._stood.count)
        fell = self._fell.log_density(distance) + math.log(self._fell.count)
        return 1.0 / (1.0 + math.exp(min(700.0, fell - stood)))

    def accepted_len(self, tokens: Sequence[Evidence], *, seed: int, base_len: int) -> int:
        """How many draft tokens stand before the first that falls; learns from these and from that one.

        `base_len` is the position of the first. Numbers are keyed as in acceptance.py.
        """
        accepted_len = len(tokens)
        exact = [
            stands(each.draft_prob, each.target_prob, seed=seed, position=base_len + index, base_len=base_len)
            for index, each in enumerate(tokens)
        ]
        for index, token in enumerate(tokens):
            if not self._stands(token, exact[index], counter.row_key(seed, Stream.ADASD, base_len + index, base_len)):
                accepted_len = index
                break
        for index, token in enumerate(tokens[: accepted_len + 1]):
            own = index < accepted_len
            self._learn(token.distance, stood=own if self._options.labels is AdasdLabels.SELF else exact[index])
        return accepted_len

    def _stands(self, token: Evidence, exact: bool, key: int) -> bool:
        if not token.possible:
            return False
        if self._is_zero(token.distance):
            return True
        if self._is_one(token.distance):
            return False
        if self._options.variant is AdasdVariant.MIDPOINT:
            threshold = self.threshold
            return exact if threshold is None else token.distance < threshold
        probability = self.probability(token.distance)
        return exact if probability is None else counter.uniform(key) < probability

    def _learn(self, distance: float, *, stood: bool) -> None:
        group = self._stood if stood else self._fell
        group.add(distance, is_inner=not (self._is_zero(distance) or self._is_one(distance)))

    def _is_zero(self, distance: float) -> bool:
        return distance <= self._tolerance

    def _is_one(self, distance: float) -> bool:
        return distance >= 1.0 - self._tolerance
