"""Values that describe sampling; no torch here, so that the controller can use them."""

import enum
from dataclasses import dataclass


class AcceptanceRule(enum.Enum):
    """How draft tokens are judged; see acceptance.py."""

    COUPLED = "coupled"
    REJECTION = "rejection"


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
    """The law a draft token was really drawn from: `weights[i] / sum(weights)` for `token_ids[i]`, else zero.

    Every weight is exactly representable in fp16, so that the wire changes nothing. `tail_mass` is the mass of the
    full warped law outside `token_ids`; it is never sampled from.
    """

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    tail_mass: float = 0.0
