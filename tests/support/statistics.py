"""Statistical checks with a stated false-alarm rate.

Samples come from fixed seeds, so a check never flickers: it is right or wrong for good. The false-alarm rate is the
probability that a right implementation would have failed with the seed that happened to be chosen.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from scipy.stats import binomtest, chi2

FALSE_ALARM_RATE = 1e-6
_LEAST_EXPECTED = 5.0  # below it the chi-square law is a poor approximation, so rare outcomes are pooled

Outcome = TypeVar("Outcome", bound=Hashable)


def assert_follows(
    samples: Iterable[Outcome], law: Mapping[Outcome, float], false_alarm_rate: float = FALSE_ALARM_RATE
) -> None:
    """Chi-square test that independent `samples` follow `law` (probabilities that sum to 1)."""
    p_value = chi_square_p_value(Counter(samples), law)
    assert p_value >= false_alarm_rate, f"p-value {p_value:.2e} is below the false-alarm rate {false_alarm_rate:.0e}"


def chi_square_p_value(counts: Mapping[Outcome, int], law: Mapping[Outcome, float]) -> float:
    """Probability of counts at least this far from `law`; 0 if something happened that cannot."""
    assert abs(sum(law.values()) - 1.0) < 1e-6, "the law's probabilities do not sum to 1"
    if any(count and not law.get(outcome) for outcome, count in counts.items()):
        return 0.0
    total = sum(counts.values())
    bins = _pooled([(probability * total, counts.get(outcome, 0)) for outcome, probability in law.items()])
    if len(bins) < 2:
        return 1.0
    statistic = sum((count - expected) ** 2 / expected for expected, count in bins)
    return float(chi2.sf(statistic, len(bins) - 1))


def assert_rate(hits: int, trials: int, rate: float, false_alarm_rate: float = FALSE_ALARM_RATE) -> None:
    """Exact binomial test that `hits` of `trials` happen with probability `rate`."""
    p_value = float(binomtest(hits, trials, rate).pvalue)
    assert p_value >= false_alarm_rate, f"{hits} of {trials} at a rate of {rate}: p-value {p_value:.2e}"


def total_variation(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the L1 distance of two laws."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2.0


def frequencies(samples: Iterable[Outcome]) -> dict[Outcome, float]:
    """The share of each outcome."""
    counts = Counter(samples)
    return {outcome: count / counts.total() for outcome, count in counts.items()}


def _pooled(bins: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Expected and observed counts, the rarest outcomes together so that each expectation is large enough."""
    pooled: list[tuple[float, int]] = []
    rest_expected, rest_count = 0.0, 0
    for expected, count in sorted(bins):
        if rest_expected < _LEAST_EXPECTED:
            rest_expected, rest_count = rest_expected + expected, rest_count + count
        else:
            pooled.append((expected, count))
    return [(rest_expected, rest_count), *pooled] if rest_expected else pooled
