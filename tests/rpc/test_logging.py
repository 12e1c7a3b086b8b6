"""Promises of the logs: one event a line, fields beside a constant text."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from speculative.telemetry.logging import LogFormat, configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: LogFormat, level: str = "INFO") -> str:
    stream = io.StringIO()
    configure(level, log_format, stream)
    logger = logging.getLogger("outrider.test")
    logger.debug("unseen")
    logger.info("listening", extra={"address": "127.0.0.1:1", "sessions": 3})
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("broken")
    return stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_an_event_is_one_json_object_a_line(log_format: LogFormat) -> None:
    first, second = [json.loads(line) for line in logged(log_format).splitlines()]
    assert first["event"] == "listening"
    assert first["level"] == "INFO"
    assert first["logger"] == "outrider.test"
    assert first["address"] == "127.0.0.1:1"
    assert first["sessions"] == 3
    assert first["time"].endswith("+00:00")
    assert "KeyError: 'x'" in second["exception"]


def test_text_shows_fields_and_tracebacks() -> None:
    text = logged("text")
    assert "listening address=127.0.0.1:1 sessions=3\n" in text
    assert "KeyError: 'x'" in text


def test_a_field_of_any_type_can_be_logged() -> None:
    stream = io.StringIO()
    configure("INFO", "json", stream)
    logging.getLogger("outrider.test").info("event", extra={"thing": object})
    assert "object" in json.loads(stream.getvalue())["thing"]


def test_events_below_the_level_are_not_logged() -> None:
    assert "listening" not in logged("text", "ERROR")
