"""Structured logs: an action and the ids to look it up by, never a secret."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from moraine.secret_names import is_secret_name


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def configure(*, level: int = logging.INFO) -> None:
    """For Moraine's own processes. Inside Airflow, logging is already set up."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger().setLevel(level)  # basicConfig ignores a second level
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso"),
            _redact,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _redact(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {k: "***" if is_secret_name(k) else v for k, v in event.items()}
