"""Structured logs: an action and the ids to look it up by, never a secret."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_KEY = re.compile(
    r"(secret|password|passwd|credential|token|authorization|access[-_.]?key|sas|private)", re.I
)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def configure(*, json: bool = False, level: int = logging.INFO) -> None:
    """For Moraine's own processes. Inside Airflow its logging is already set up."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )
    )
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger().setLevel(level)  # the last to ask decides, not the first
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso"),
            _redact,
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def is_secret_name(name: str) -> bool:
    return bool(_SECRET_KEY.search(name))


def _redact(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {k: "***" if is_secret_name(k) else v for k, v in event.items()}
