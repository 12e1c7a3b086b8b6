"""A model and its engine for the life of a process: what the draft service and the verifier service start with."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass

from speculative.engine.loading import LoadedModel, LoadSettings, Role, load
from speculative.engine.worker import Engine, EngineSettings
from speculative.settings import ModelServerSettings


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A running engine, and the files of its model's tokenizer by name."""

    engine: Engine
    tokenizer_files: Mapping[str, bytes]


@asynccontextmanager
async def hosted(settings: ModelServerSettings, role: Role) -> AsyncIterator[HostedModel]:
    """Loads the model and runs its engine for the length of the block. Raises ModelLoadError."""
    how = LoadSettings(
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cache_tokens=settings.cache_tokens,
        max_batch_tokens=settings.max_batch_tokens,
        block_tokens=settings.block_tokens,
        attention=settings.attention,
        pack_weights=settings.pack_weights,
    )
    loaded = await _in_daemon_thread(lambda: load(settings.model, how, role))
    engine = Engine(
        loaded.runner,
        EngineSettings(
            max_batch_tokens=settings.max_batch_tokens,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_sessions=settings.max_sessions,
            max_queue_len=settings.max_queue_len,
        ),
    )
    await engine.start()
    try:
        yield HostedModel(engine, loaded.tokenizer_files)
    finally:
        await engine.stop()


def _in_daemon_thread(function: Callable[[], LoadedModel]) -> Awaitable[LoadedModel]:
    """Runs a function that may take minutes in a thread that nobody has to wait for (an executor joins its own)."""
    future: Future[LoadedModel] = Future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it belongs to the one who waits
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()
    threading.Thread(target=work, name="model-loading", daemon=True).start()
    return asyncio.wrap_future(future)
