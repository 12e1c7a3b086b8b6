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
    """An answer of `length` tokens whose drafts match independently with `rate`; the entropy tells a little."""
    rng = random.Random(seed)

    def step(matches: bool) -> DraftStep:
        entropy = max(0.0, rng.gauss(0.5 if matches else 1.2, 0.5))
        kl = max(0.0, rng.gauss(0.1 if matches else 0.6, 0.1))
        return DraftStep(matches, entropy, rng.uniform(0.3, 1.0), kl, 0.3, entropy)

    positions = [step(rng.random() < rate) for _ in range(length)]
    rollouts = [() if position.matches else tuple(step(False) for _ in range(8)) for position in positions]
    return RequestTrace(f"{rate}-{seed}", 20, tuple(map(TracedPosition, positions, rollouts)))
