"""Services that come, go and come back as something else, over sockets with fixed names."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.clients import DraftClient, GenerationClient, VerifierClient
from controller.config import ControllerConfig
from controller.pool import Fleet, WatchSettings, check_pair
from controller.servicer import SPECULATION, ControllerProcess
from draft_service.config import DraftConfig
from draft_service.servicer import DraftProcess
from speculative.errors import IncompatibleModelError, NotReadyError
from speculative.generation import GenerationRequest, StopConditions, TextPrompt
from speculative.rpc.channel import open_channel, wait_serving
from speculative.rpc.lifecycle import Service, Stop, serve
from speculative.settings import ServerSettings
from tests.controller.fakes import DRAFT_INFO, INFO
from verifier_service.config import VerifierConfig
from verifier_service.servicer import VerifierProcess

TARGET = "emulated:target"


@asynccontextmanager
async def process(settings: ServerSettings, service: Service) -> AsyncIterator[None]:
    """A service for the length of the block; drained at once at its end."""
    stop = Stop()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, service, stop))
        try:
            yield
        finally:
            stop.set()


class Host:
    """Three addresses, and services on them whenever wanted."""

    def __init__(self, folder: Path) -> None:
        self.draft_address, self.verifier_address, self.address = (
            f"unix:{folder / name}" for name in ("draft", "verifier", "controller")
        )

    def draft(self, model: str = "emulated:draft", **settings: Any) -> Any:
        config = DraftConfig(**{"model": model, "listen": self.draft_address, "drain_grace_s": 0, **settings})
        return process(config, DraftProcess(config))

    def verifier(self, model: str = TARGET, **settings: Any) -> Any:
        config = VerifierConfig(**{"model": model, "listen": self.verifier_address, "drain_grace_s": 0, **settings})
        return process(config, VerifierProcess(config))

    def controller(self, **settings: Any) -> Any:
        addresses = {"listen": self.address, "verifier": self.verifier_address, "draft": self.draft_address}
        config = ControllerConfig(**{**addresses, "drain_grace_s": 0, **settings})
        return process(config, ControllerProcess(config))

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[Fleet]:
        async with open_channel(self.draft_address) as draft, open_channel(self.verifier_address) as verifier:
            fleet = Fleet(
                VerifierClient(self.verifier_address, verifier),
                DraftClient(self.draft_address, draft),
                WatchSettings(retry_s=0.02),
            )
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(fleet.run())
                yield fleet
                watching.cancel()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def becomes(fleet: Fleet, holds: Callable[[], bool], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await fleet.next_change.wait()


async def test_a_draft_that_comes_and_goes_is_offered_while_it_is_there(host: Host) -> None:
    async with host.verifier(), host.fleet() as fleet:
        await fleet.wait_ready()
        assert fleet.pick() is None
        assert host.draft_address in fleet.speculation_off_reason
        for model in ("emulated:draft", "emulated:draft?agree=0.5"):
            async with host.draft(model):
                await becomes(fleet, lambda: fleet.pick() is not None)
                draft = fleet.pick()
                assert draft is not None
                assert draft.info.name == model
                assert fleet.speculation_off_reason == ""
            await becomes(fleet, lambda: fleet.pick() is None)
            assert fleet.ready


def refusal(fleet: Fleet) -> str:
    with pytest.raises(NotReadyError) as refused:
        fleet.target()
    return str(refused.value)


async def test_a_service_that_cannot_be_reached_is_named_once(host: Host) -> None:
    async with host.fleet() as fleet:
        await becomes(fleet, lambda: "connect" in fleet.speculation_off_reason and "connect" in refusal(fleet))
        assert fleet.speculation_off_reason.count("draft service at") == 1
        assert refusal(fleet).count("verifier service at") == 1
        assert host.draft_address in fleet.speculation_off_reason
        assert host.verifier_address in refusal(fleet)


async def test_a_draft_that_comes_back_with_another_vocabulary_is_refused(host: Host) -> None:
    async with host.verifier(), host.fleet() as fleet:
        async with host.draft():
            await becomes(fleet, lambda: fleet.pick() is not None)
        async with host.draft("emulated:draft?vocab=rotated"):
            await becomes(fleet, lambda: "vocabularies" in fleet.speculation_off_reason)
            assert fleet.pick() is None
        async with host.draft():
            await becomes(fleet, lambda: fleet.pick() is not None)


async def test_a_verifier_that_comes_back_as_another_model_brings_its_tokenizer(host: Host) -> None:
    async with host.fleet() as fleet:
        with pytest.raises(NotReadyError, match="verifier service"):
            fleet.target()
        async with host.verifier():
            await fleet.wait_ready()
            first = fleet.target()
        await becomes(fleet, lambda: not fleet.ready)
        with pytest.raises(NotReadyError):
            fleet.target()
        async with host.verifier():
            await fleet.wait_ready()
            assert fleet.target().tokenizer is first.tokenizer
        async with host.verifier(f"{TARGET}?vocab=rotated"):
            await becomes(fleet, lambda: fleet.ready and fleet.target().tokenizer is not first.tokenizer)
            token_ids = first.tokenizer.encode("ab", add_special_tokens=False)
            assert fleet.target().tokenizer.encode("ab", add_special_tokens=False) != token_ids


async def test_the_controllers_health_follows_its_services(host: Host) -> None:
    async def healthy(name: str) -> bool:
        try:
            await wait_serving(channel, name, 0.1, "controller")
        except NotReadyError:
            return False
        return True

    async def turns(name: str, expected: bool) -> None:
        async with asyncio.timeout(10):
            while await healthy(name) is not expected:
                await asyncio.sleep(0.01)

    async with host.controller(), open_channel(host.address) as channel:
        assert not await healthy("")
        async with host.verifier():
            await turns("", True)
            await turns("speculative.v1.GenerationService", True)
            assert not await healthy(SPECULATION)
            async with host.draft():
                await turns(SPECULATION, True)
            await turns(SPECULATION, False)
            assert await healthy("")
        await turns("", False)
        async with host.verifier():
            await turns("", True)


async def test_speculation_resumes_in_a_stream_whose_draft_comes_back(host: Host) -> None:
    async with (
        host.verifier("emulated:target?eos_rate=0&forward_ms=4"),
        host.controller(policy="fixed", draft_retry_s=0.02),
        open_channel(host.address) as channel,
    ):
        await wait_serving(channel, "", 10, "controller")
        client = GenerationClient(host.address, channel)
        request = GenerationRequest(
            TextPrompt("A horse"), seed=1, stop=StopConditions(max_tokens=4000), round_trace=True
        )
        stream = client.generate(request, 50)

        async def next_round(drafted: bool) -> None:
            async for event in stream:
                trace = getattr(event, "round", None)
                if trace is not None and bool(trace.draft_token_ids) is drafted:
                    return
            pytest.fail("the answer ended before")

        await next_round(drafted=False)
        for _ in range(2):
            async with host.draft():
                await next_round(drafted=True)
            await next_round(drafted=False)
        await stream.aclose()


def test_the_fingerprint_alone_decides_about_a_pair() -> None:
    check_pair(dataclasses.replace(DRAFT_INFO, vocab_size=INFO.vocab_size), INFO)
    other = dataclasses.replace(DRAFT_INFO, vocab_fingerprint="0" * 64)
    with pytest.raises(IncompatibleModelError, match=r"'draft'.*'target'"):
        check_pair(other, INFO)
