"""Logs: one event a line, as JSON for machines or as text for people; never a prompt, a token or an answer.

An event is `logger.info("listening", extra={"address": address})`: a short constant text, and fields beside it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["auto", "json", "text"]
"""`auto` is text on a terminal and JSON everywhere else."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The event's own fields, as they were passed in `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, event, the event's fields, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        event |= {name: value for name, value in fields_of(record).items() if name not in event}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, event, name=value for each field; the traceback follows if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {name}={value}" for name, value in fields_of(record).items())
        line = f"{time} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str = "INFO", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Sends all logs of the process to `stream` (standard error by default); replaces what was configured before."""
    stream = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
