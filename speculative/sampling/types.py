"""Values that describe sampling; no torch here, so that the controller can use them."""

import enum
from dataclasses import dataclass


class AcceptanceRule(enum.Enum):
    """How draft tokens are judged; see acceptance.py."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    ADASD = "adasd"

    @property
    def needs_laws(self) -> bool:
        """Whether it judges by the law each draft token was drawn from."""
        return self is not AcceptanceRule.COUPLED

    @property
    def lossy(self) -> bool:
        """Whether the output's law may differ from the target's."""
        return self is AcceptanceRule.ADASD


class AdasdVariant(enum.Enum):
    """How AdaSD judges a distance of two laws; see adasd.py."""

    BAYES = "bayes"
    MIDPOINT = "midpoint"


class AdasdLabels(enum.Enum):
    """Who decides which of AdaSD's groups a distance joins: the exact test of the rejection rule, or AdaSD itself."""

    EXACT = "exact"
    SELF = "self"


@dataclass(frozen=True, slots=True)
class AdasdOptions:
    """How AdaSD accepts."""

    variant: AdasdVariant = AdasdVariant.BAYES
    labels: AdasdLabels = AdasdLabels.EXACT


class Signal(enum.Enum):
    """A number for every drafted position that is computed and sent only when a policy (or a trace) wants it."""

    DRAFT_PROB = "draft_prob"
    KL = "kl"
    JS_DISTANCE = "js_distance"
    TARGET_ENTROPY = "target_entropy"

    @property
    def compares_laws(self) -> bool:
        """Whether it needs the draft's law at the position besides the target's."""
        return self in (Signal.KL, Signal.JS_DISTANCE)


@dataclass(frozen=True, slots=True)
class Signals:
    """The verifier's signals of one chunk: an entry for each drafted token, or none where a signal is not wanted.

    At temperature 0, where warped laws are one-hot, they are those of the laws at temperature 1 without cuts.
    """

    kl_nats: tuple[float, ...] = ()
    """KL(target || draft); from a cut law a lower bound."""
    js_distance: tuple[float, ...] = ()
    """Square root of the base-2 Jensen-Shannon divergence, in [0, 1]; from a cut law a lower bound."""
    target_entropies_nats: tuple[float, ...] = ()
    """Entropy of the target's warped law."""


NO_SIGNALS = Signals()
PAPERS_ADASD = AdasdOptions()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a next-token law is warped, in this order: temperature, top-k, top-p, min-p. Defaults are neutral.

    `temperature` 0 is greedy: the most likely token, the lowest id on a tie. `top_k` 0 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether the law is one-hot on the most likely token."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class SparseLaw:
    """The likeliest tokens of a draft's law: `weights[i] / sum(weights)` for `token_ids[i]`, else zero.

    Where a rule judges by laws, it is the law the token was really drawn from; so every weight is exactly representable
    in fp16, and the wire changes nothing. `tail_mass` is the mass of the full warped law outside `token_ids`; it is
    never sampled from.
    """

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    tail_mass: float = 0.0
