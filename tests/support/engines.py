"""Engines on emulated models, with a record of what was fed to them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from speculative.engine.interface import BlockPool, Rows, Runner, Slice
from speculative.engine.loading import LoadSettings, load
from speculative.engine.worker import Engine, EngineSettings
from speculative.messages import ModelInfo


@dataclass
class RecordingRunner:
    """A runner that remembers how many tokens each forward fed, and can be told to fail."""

    inner: Runner
    fed: list[int] = field(default_factory=list)
    failure: Exception | None = None

    @property
    def info(self) -> ModelInfo:
        return self.inner.info

    @property
    def blocks(self) -> BlockPool:
        return self.inner.blocks

    def forward(self, slices: Sequence[Slice]) -> Rows:
        if self.failure is not None:
            raise self.failure
        self.fed.append(sum(len(one.token_ids) for one in slices))
        return self.inner.forward(slices)

    def forget(self) -> None:
        """Forgets what was fed."""
        self.fed.clear()


async def sessions_become(engine: Engine, count: int, within_s: float = 1.0) -> None:
    """Waits until so many sessions are open and, for none, all blocks are free; fails after `within_s`."""
    async with asyncio.timeout(within_s):
        while not _has(engine, count):
            await asyncio.sleep(0.01)


def _has(engine: Engine, count: int) -> bool:
    stats = engine.stats()
    return stats.sessions == count and (count > 0 or stats.free_blocks == stats.num_blocks)


@asynccontextmanager
async def running_engine(model: str, **settings: Any) -> AsyncIterator[tuple[Engine, RecordingRunner]]:
    """An engine on `model`; `settings` are fields of EngineSettings. Checks its books at the end."""
    runner = RecordingRunner(load(model, LoadSettings(), "target").runner)
    engine = Engine(runner, EngineSettings(**settings))
    await engine.start()
    try:
        yield engine, runner
    finally:
        await engine.stop()
    engine.check_integrity()
