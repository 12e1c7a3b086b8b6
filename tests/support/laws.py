"""The target's law of the first tokens, computed from a plain forward pass with transformers' own processors."""

import itertools
from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from speculative.sampling.types import SamplingParams


def next_token_law(model: PreTrainedModel, tokens: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """The warped law behind `tokens`; ids of probability zero are left out."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[:, -1]
    if params.greedy:
        return {int(logits[0].argmax()): 1.0}
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    token_ids = torch.LongTensor([list(tokens)])
    probs = warpers(token_ids, logits).double().softmax(-1)[0]
    return {token: float(prob) for token, prob in enumerate(probs) if prob > 0}


def law_of_first_tokens(
    model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams, count: int, eos_token_ids: Sequence[int]
) -> dict[tuple[int, ...], float]:
    """The joint law of the first `count` generated tokens; a sequence ends before an end-of-sequence token."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    ended: dict[tuple[int, ...], float] = {}
    for _ in range(count):
        grown: dict[tuple[int, ...], float] = {}
        for (sequence, prob), (token, token_prob) in itertools.chain.from_iterable(
            zip(itertools.repeat(item), next_token_law(model, [*prompt, *item[0]], params).items(), strict=False)
            for item in law.items()
        ):
            if token in eos_token_ids:
                ended[sequence] = ended.get(sequence, 0.0) + prob * token_prob
            else:
                grown[*sequence, token] = prob * token_prob
        law = grown
    return law | ended
