"""The life of a process: what a parent, a terminal and an orchestrator can rely on. Real processes."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from speculative.errors import NotReadyError
from speculative.messages import Advance, DraftOpen
from speculative.rpc import codec
from speculative.rpc.channel import open_channel, wait_serving
from speculative.rpc.translate import peer_errors
from speculative.sampling.types import SamplingParams
from speculative.v1 import draft_service_pb2, draft_service_pb2_grpc, verifier_service_pb2, verifier_service_pb2_grpc

START_S = 30  # a machine under load starts Python slowly
ANY_PORT = ("--listen", "127.0.0.1:0")


@dataclass
class Child:
    """A running service process."""

    process: asyncio.subprocess.Process
    ready_file: Path

    async def state(self, *wanted: str) -> dict[str, Any]:
        """What the ready file says, once it says one of the wanted states."""
        async with asyncio.timeout(START_S):
            while True:
                if self.ready_file.exists() and (said := json.loads(self.ready_file.read_text()))["state"] in wanted:
                    assert said["pid"] == self.process.pid
                    return dict(said)
                await asyncio.sleep(0.02)

    async def end(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the log, both after the process has ended."""
        async with asyncio.timeout(START_S):
            _, log = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, [json.loads(line) for line in log.decode().splitlines()]


@contextlib.asynccontextmanager
async def child(tmp_path: Path, *arguments: str) -> AsyncIterator[Child]:
    ready_file = tmp_path / "ready.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--ready-file", str(ready_file), stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Child(process, ready_file)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_sigterm_lets_open_streams_end_and_exits_zero(tmp_path: Path) -> None:
    arguments = ("-m", "draft_service", "--model", "emulated:draft?eos_rate=0", *ANY_PORT)
    async with child(tmp_path, *arguments) as draft:
        address = (await draft.state("SERVING"))["address"]
        async with open_channel(address) as channel:
            stub = draft_service_pb2_grpc.DraftServiceStub(channel)
            call = stub.Draft(timeout=20)
            await call.write(codec.encode_draft_open(DraftOpen((0, 1), SamplingParams(), 7)))
            await call.write(codec.encode_advance(Advance(2, (), 4)))
            first = (await call.read()).drafted

            draft.process.send_signal(signal.SIGTERM)
            await draft.state("DRAINING")
            with pytest.raises(NotReadyError), peer_errors("draft"):
                await stub.GetInfo(draft_service_pb2.DraftServiceGetInfoRequest(), timeout=5)
            await call.write(codec.encode_advance(Advance(2, tuple(first.token_ids), 4)))
            assert len((await call.read()).drafted.token_ids) == 4
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        code, log = await draft.end()
    assert code == 0
    assert not draft.ready_file.exists()
    events = [line["event"] for line in log]
    assert events.index("settings") < events.index("listening") < events.index("serving") < events.index("draining")
    assert next(line["address"] for line in log if line["event"] == "listening") == address
    assert log[-1]["event"] == "stopped"
    assert log[-1]["clean"] is True


async def test_a_stream_that_outlives_the_grace_does_not_keep_the_process(tmp_path: Path) -> None:
    arguments = ("-m", "verifier_service", "--model", "emulated:target", *ANY_PORT, "--drain-grace-s", "0.2")
    async with child(tmp_path, *arguments) as verifier:
        address = (await verifier.state("SERVING"))["address"]
        async with open_channel(address) as channel:
            await wait_serving(channel, "speculative.v1.VerifierService", 5, "verifier")
            call = verifier_service_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=20)
            await call.write(verifier_service_pb2.VerifyRequest(open={"prompt_token_ids": [1]}))
            await asyncio.sleep(0.2)
            verifier.process.send_signal(signal.SIGINT)
            with pytest.raises(NotReadyError), peer_errors("verifier"):
                await call.read()
        code, log = await verifier.end()
    assert code == 0
    assert log[-1]["clean"] is False


LOADING = """
import sys, time
from speculative import settings
from speculative.engine import hosting
from speculative.rpc import lifecycle
from draft_service.config import DraftConfig
from draft_service.servicer import DraftProcess

hosting.load = lambda *how: time.sleep(600)
config = settings.load(DraftConfig, sys.argv[1:], "draft")
lifecycle.run(config, lambda: DraftProcess(config))
"""


async def test_a_process_that_loads_answers_not_ready_and_stops_at_once(tmp_path: Path) -> None:
    async with child(tmp_path, "-c", LOADING, "--model", "huge", *ANY_PORT) as draft:
        address = (await draft.state("LISTENING"))["address"]
        async with open_channel(address) as channel:
            with pytest.raises(NotReadyError, match="NOT_SERVING"):
                await wait_serving(channel, "speculative.v1.DraftService", 0.3, "draft")
            stub = draft_service_pb2_grpc.DraftServiceStub(channel)
            with pytest.raises(NotReadyError, match="not loaded"), peer_errors("draft"):
                await stub.GetInfo(draft_service_pb2.DraftServiceGetInfoRequest(), timeout=5)
            with pytest.raises(NotReadyError, match="not loaded"), peer_errors("draft"):
                _ = [one async for one in stub.Draft(iter([draft_service_pb2.DraftRequest()]), timeout=5)]
            draft.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(3):
                code, log = await draft.end()
    assert code == 0
    assert "serving" not in [line["event"] for line in log]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "emulated:nonsense", *ANY_PORT), 1, "nonsense"),
        (("--model", "emulated:draft", "--listen", "256.0.0.1:5"), 1, "cannot listen on 256.0.0.1:5"),
        (("--model", "emulated:draft", "--threads", "-1"), 2, "--threads"),
    ],
)
async def test_a_process_that_cannot_start_says_why(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    async with child(tmp_path, "-m", "draft_service", *arguments) as draft, asyncio.timeout(START_S):
        _, log = await draft.process.communicate()
        assert draft.process.returncode == code
    last = log.decode().splitlines()[-1]
    assert message in last
    assert "Traceback" not in log.decode()
    assert not draft.ready_file.exists()
