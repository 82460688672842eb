"""Intents, as the ledger gives them back, and what a look at a catalog says of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from moraine.gateway.checks import check
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Operation, Target, Verdict
from support.iceberg_bodies import TABLE, loaded

Json = dict[str, Any]


def intent(operation: Operation, target: Target, body: Json, **before: Any) -> Intent:
    made = dataclasses.replace(intent_of(operation, target, body), before=before)
    return Intent.from_json(json.loads(json.dumps(made.to_json())))


def commit_intent(*updates: Json, target: Target = TABLE) -> Intent:
    operation = Operation.COMMIT_TABLE if target is TABLE else Operation.REPLACE_VIEW
    return intent(operation, target, {"requirements": [], "updates": list(updates)})


def verdict(metadata: Json, *updates: Json, target: Target = TABLE) -> Verdict:
    return check(commit_intent(*updates, target=target), {target: loaded(metadata)})
