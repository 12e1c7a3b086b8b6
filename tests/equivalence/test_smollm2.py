"""The demo pair on real prompts: greedy output is transformers' own `generate`, token for token."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from speculative.engine.demo_model import demo_directory
from speculative.engine.loading import LoadSettings, load
from speculative.sampling.types import SamplingParams
from tests.support.pairs import Ask, pair

MAX_TOKENS = 32
TIE = 1e-3
PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in simple words why the sky is blue.",
    "List five fruits that are red.",
    "Translate to Spanish: The weather is nice today.",
    "Summarise in one sentence: The cat sat on the mat and looked out of the window at the rain.",
    "How do I boil an egg?",
    "What is 17 plus 25?",
    "Write a short poem about a river in winter.",
    "Repeat this sentence twice: A horse runs ahead of its carriage.",
    "Who wrote Pride and Prejudice?",
    "Give me three tips for sleeping well.",
    "def add(a, b):",
    "Name a few large cities in Japan.",
    "What is the difference between a list and a tuple in Python?",
    "Tell me a joke about computers.",
    "Why do leaves fall in autumn?",
    "Complete the sequence: 2, 4, 8, 16,",
    "Write an e-mail that thanks a colleague for help.",
    "Schreibe einen Satz über Pferde. 🐎",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_greedy_answers_to_real_prompts_are_the_targets_own() -> None:
    path = str(demo_directory("target"))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    rendered = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    prompts = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in rendered]
    settings = LoadSettings(device="cpu", cache_tokens=8192)
    target, draft = load("demo", settings, "target").runner, load("demo", settings, "draft").runner
    greedy = SamplingParams(temperature=0.0)
    asks = [
        Ask(prompt, MAX_TOKENS, greedy, policy_parameters={"length": 1 + i % 8}) for i, prompt in enumerate(prompts)
    ]
    async with pair(target, draft) as running:
        answers = await running.generate_all(asks)
    for prompt, answered in zip(prompts, answers, strict=True):
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
        )
        expected = [token for token in output[0, len(prompt) :].tolist() if token not in target.info.eos_token_ids]
        at = next((i for i, (e, a) in enumerate(zip(expected, answered.token_ids, strict=False)) if e != a), None)
        if at is None:
            assert list(answered.token_ids) == expected
        else:
            with torch.inference_mode():
                scores = model(torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
            assert abs(float(scores[expected[at]] - scores[answered.token_ids[at]])) < TIE
