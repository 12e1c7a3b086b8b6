"""Made-up answers for replays: which draft tokens match, with signals that may tell."""

import random

from controller.policies.replay import DraftStep, RequestTrace, TracedPosition


def scripted_answer(matches: str, request: str = "r", prompt_len: int = 10) -> RequestTrace:
    """An answer from a text of "+" (the draft matches) and "-"; entropies 0.5 and 2, divergences 0.1 and 1."""
    positions = tuple(
        TracedPosition(DraftStep(True, 0.5, 0.9, 0.1) if match == "+" else DraftStep(False, 2.0, 0.3, 1.0))
        for match in matches
    )
    return RequestTrace(request, prompt_len, positions)


def random_answer(rate: float, length: int, seed: int) -> RequestTrace:
    """An answer of `length` tokens, each as hard as a draw says; drafts match with `rate` on the whole.

    The draft knows: it matches with its own probability of the token, and its entropy and its divergence from the
    target fall as that rises.
    """
    rng = random.Random(seed)

    def step(on_path: bool) -> DraftStep:
        prob = rng.betavariate(2.0 * rate, 2.0 * (1.0 - rate))
        matches = on_path and rng.random() < prob
        entropy = max(0.0, 2.5 * (1.0 - prob) + rng.gauss(0.0, 0.3))
        kl = max(0.0, 0.8 * (1.0 - prob) + rng.gauss(0.0, 0.1))
        return DraftStep(matches, entropy, max(0.01, prob), kl, min(1.0, kl), entropy)

    positions = [step(on_path=True) for _ in range(length)]
    rollouts = [() if position.matches else tuple(step(on_path=False) for _ in range(8)) for position in positions]
    return RequestTrace(f"{rate}-{seed}", 20, tuple(map(TracedPosition, positions, rollouts)))
