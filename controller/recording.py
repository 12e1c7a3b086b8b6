"""Rounds of real requests as records for replays and reports (policies/trace.py), and the files a server keeps of them.

Invariant: a record holds numbers about the rounds, never text nor token ids, which are as good as text.
"""

import logging
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from controller.decoder import Record
from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.trace import RoundRecord, Setting, record_line
from speculative.generation import RoundTrace, SpeculationOptions
from speculative.sampling.types import SamplingParams

_log = logging.getLogger(__name__)

_NAME = re.compile(r"rounds-[0-9a-f]{16}\.jsonl")
_MOST_WAITING = 64


def new_request_name() -> str:
    """A name for a request, of 16 hexadecimal digits, that no other has."""
    return secrets.token_hex(8)


def settings_of(target: str, sampling: SamplingParams, speculation: SpeculationOptions) -> dict[str, Setting]:
    """How a request was made, as far as it matters to its rounds; what was left to a default is left out."""
    optional = {
        "top_k": sampling.top_k or None,
        "top_p": sampling.top_p if sampling.top_p < 1.0 else None,
        "min_p": sampling.min_p or None,
        "max_draft_tokens": speculation.max_draft_tokens,
        "prompt_lookup": speculation.prompt_lookup,
    }
    return {
        "target": target,
        "temperature": sampling.temperature,
        "acceptance": speculation.acceptance.value,
        **{name: float(value) for name, value in optional.items() if value is not None},
        **{f"policy.{name}": float(value) for name, value in speculation.policy_parameters.items()},
    }


class RoundRecorder:
    """Turns the rounds of one request into lines of a trace."""

    def __init__(self, request: str, policy: str, settings: Mapping[str, Setting]) -> None:
        self._request = request
        self._policy = policy
        self._settings: Mapping[str, Setting] = settings

    def line(self, one: RoundTrace) -> str:
        """The next round as a line of JSON, with its end; the first one carries the settings."""
        settings, self._settings = self._settings, {}
        signals = one.signals
        record = RoundRecord(
            request=self._request,
            base_len=one.base_len,
            plan=ChunkPlan(one.max_tokens, one.stop_entropy_nats, one.stop_prob, one.stop_survival),
            outcome=RoundOutcome(
                drafted_len=len(one.draft_token_ids),
                accepted_len=one.accepted_len,
                entropies_nats=one.draft_entropies_nats,
                draft_ns=one.draft_ns,
                queue_ns=one.queue_ns,
                forward_ns=one.forward_ns,
                round_ns=one.round_ns,
                batch_size=one.batch_size,
                draft_probs=one.draft_probs,
                kl_nats=signals.kl_nats,
                js_distance=signals.js_distance,
                target_entropies_nats=signals.target_entropies_nats,
            ),
            policy=self._policy,
            looked_up_len=one.looked_up,
            state=one.policy_state,
            settings=settings,
        )
        return record_line(record) + "\n"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What a server keeps of the rounds of its requests: at most `max_files` times `max_file_bytes`."""

    directory: Path
    max_files: int
    max_file_bytes: int
    signals: bool
    """Whether all signals are recorded, also those that the policy has no use for."""


class TraceFolder:
    """Files of rounds, one a request; the oldest go when there are too many.

    A request only ever adds to a list: a thread writes its file when it has ended. Where that fails, or where the disk
    falls behind, traces are lost, which is logged once; the request does not notice.
    """

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._writer = ThreadPoolExecutor(1, "traces")
        self._places = threading.Semaphore(_MOST_WAITING)
        self._complained = False

    @contextmanager
    def recording(self, policy: str, settings: Mapping[str, Setting]) -> Iterator[Record]:
        """Records one request for as long as the block lasts, however it ends."""
        request = new_request_name()
        recorder = RoundRecorder(request, policy, settings)
        lines: list[bytes] = []
        room = self.settings.max_file_bytes

        def record(one: RoundTrace) -> None:
            nonlocal room
            line = recorder.line(one).encode()
            if len(line) > room:
                room = 0  # what is too long is cut, never holed: a replay takes the lines for one stretch of text
                return
            room -= len(line)
            lines.append(line)

        try:
            yield record
        finally:
            if lines:
                self._hand_over(f"rounds-{request}.jsonl", lines)

    def close(self) -> None:
        """Waits until everything handed over is on the disk."""
        self._writer.shutdown()

    def _hand_over(self, name: str, lines: list[bytes]) -> None:
        if self._places.acquire(blocking=False):
            self._writer.submit(self._write, name, lines)
        else:
            self._complain("the disk falls behind")

    def _write(self, name: str, lines: list[bytes]) -> None:
        directory = self.settings.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / name
            path.touch(mode=0o600)
            path.write_bytes(b"".join(lines))
            with suppress(FileNotFoundError):  # another controller with this directory was quicker
                self._remove_oldest()
        except OSError as error:
            self._complain(str(error))
        finally:
            self._places.release()

    def _remove_oldest(self) -> None:
        files = [path for path in self.settings.directory.iterdir() if _NAME.fullmatch(path.name)]
        surplus = len(files) - self.settings.max_files
        if surplus > 0:
            for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)[:surplus]:
                path.unlink(missing_ok=True)

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("traces are lost", extra={"reason": reason})
