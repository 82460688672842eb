"""Intents, as the ledger gives them back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Operation, Target


def intent(operation: Operation, target: Target, body: dict[str, Any], **before: Any) -> Intent:
    made = dataclasses.replace(intent_of(operation, target, body), before=before)
    return Intent.from_json(json.loads(json.dumps(made.to_json())))
