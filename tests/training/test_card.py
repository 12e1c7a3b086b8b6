"""The card says what was measured."""

from typing import Any

from training.card import card


def _summary(acceptance: float) -> dict[str, Any]:
    rounds = {f"tokens_a_round_{w}_chunk_{n}": 1.5 + n / 8 for w in ("alone", "with_lookup") for n in (4, 8)}
    return {"acceptance": acceptance, "acceptance_by_position": [0.25] * 8, **rounds}


def test_every_goal_and_rule_is_in_the_card_with_its_number() -> None:
    run = {
        "labelled_positions": 12345,
        "steps": 678,
        "minutes": 9.0,
        "validation_greedy": 0.321,
        "validation_overlap": 0.3,
        "parameters": 999,
        "shape": {"num_layers": 2, "hidden_size": 8, "num_heads": 2, "vocab_size": 64, "head_size": 32},
    }
    rounds = {rule: _summary(value) for rule, value in (("greedy", 0.411), ("coupled", 0.377), ("rejection", 0.388))}
    result = {
        "goals": [
            {"name": "fast", "value": 2.0, "goal": "<= 2.5", "holds": True},
            {"name": "apt", "value": 0.4, "goal": ">= 0.5", "holds": False},
        ],
        "details": {"rounds": rounds | {"greedy_by_kind": {"chat": _summary(0.299)}}},
        "environment": {"cpu": "a CPU", "cores": 2},
        "figures": [{"name": "draft step", "value": 1.25, "unit": "ms", "note": ""}],
        "measured_at": "2026-01-02T00:00:00+00:00",
        "command": "python -m benchmarks.draft",
    }
    text = card(run, result)
    for expected in ("12,345", "678", "0.321", "0.411", "0.377", "0.388", "0.299", "1.25 ms", "2026-01-02", "a CPU"):
        assert expected in text
    assert "| fast | 2 | <= 2.5 | yes |" in text
    assert "| apt | 0.4 | >= 0.5 | **no** |" in text
