"""`--trace FILE` of `outrider generate` and `chat`, and reading such files again."""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from rich.console import Console

from controller.cli.answers import AnswerView
from controller.cli.failures import WRONG_REQUEST, CommandError
from controller.policies.trace import RoundRecord, read_records
from controller.recording import RoundRecorder, new_request_name, settings_of
from speculative.errors import InvalidRequestError
from speculative.generation import Delta, GenerationEvent, GenerationRequest, Started


class TraceFile:
    """Appends the rounds of answers to a file; an answer goes on where the file cannot be written."""

    def __init__(self, file: RawIOBase, notes: Console) -> None:
        self._file = file
        self._notes = notes
        self._failed = False

    def view(self, request: GenerationRequest, view: AnswerView) -> AnswerView:
        """`view`, with every round written to the file before it sees the event without it."""
        return _TracedView(self, request, view)

    def write(self, line: str) -> None:
        """Writes at once, so that an interrupted answer leaves its rounds; nothing more after a failure."""
        if self._failed:
            return
        content = line.encode()
        try:
            if self._file.write(content) != len(content):
                raise OSError("the disk is full")
        except OSError as error:
            self._failed = True
            self._notes.print(f"the trace is not written: {error}", style="yellow", markup=False)


class _TracedView:
    def __init__(self, file: TraceFile, request: GenerationRequest, view: AnswerView) -> None:
        self._file = file
        self._request = request
        self._view = view
        self._recorder: RoundRecorder | None = None

    def show(self, event: GenerationEvent) -> None:
        match event:
            case Started():
                settings = settings_of(event.model, self._request.sampling, self._request.speculation)
                self._recorder = RoundRecorder(new_request_name(), event.policy, settings)
            case Delta(round=round_trace) if round_trace is not None:
                assert self._recorder is not None
                self._file.write(self._recorder.line(round_trace))
                event = dataclasses.replace(event, round=None)
                if not event.token_ids:
                    return  # it came for its round alone
        self._view.show(event)


@contextmanager
def trace_file(path: Path | None, notes: Console) -> Iterator[TraceFile | None]:
    """The file, open for as long as the block lasts; None without a path. OSError where it cannot be opened."""
    if path is None:
        yield None
        return
    with path.open("ab", buffering=0) as file:
        yield TraceFile(file, notes)


def traced(request: GenerationRequest) -> GenerationRequest:
    """The request, asking for its rounds and all their signals."""
    return dataclasses.replace(request, round_trace=True, round_signals=True)


def only(records: list[RoundRecord], request: str | None) -> list[RoundRecord]:
    """The records of one request, or all; CommandError for a request that has none."""
    chosen = [record for record in records if request in (None, record.request)]
    if not chosen:
        names = ", ".join(dict.fromkeys(record.request for record in records))
        raise CommandError(f"no request {request!r} in these traces", f"there are: {names}", WRONG_REQUEST)
    return chosen


def read_traces(paths: Iterable[Path]) -> list[RoundRecord]:
    """All records of some files. CommandError says which file is wrong where, or that there is nothing in them."""
    records: list[RoundRecord] = []
    for path in paths:
        with path.open(encoding="utf-8") as file:
            try:
                records.extend(read_records(file))
            except (InvalidRequestError, UnicodeDecodeError) as error:
                advice = "give files that outrider generate --trace wrote"
                raise CommandError(f"{path}: {error}", advice, WRONG_REQUEST) from error
    if not records:
        raise CommandError("no rounds in these traces", "record some: outrider generate --trace FILE", WRONG_REQUEST)
    return records
