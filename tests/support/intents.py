"""Intents, as the ledger gives them back, and what a look at a catalog says of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from moraine.gateway.checks import check
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Verdict
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import Identifier
from support.iceberg_bodies import TABLE, loaded

Json = dict[str, Any]


def intent(endpoint: Endpoint, target: Identifier, body: Json, **before: Any) -> Intent:
    made = dataclasses.replace(intent_of(endpoint, target, body), before=before)
    return Intent.from_json(json.loads(json.dumps(made.to_json())))


def commit_intent(*updates: Json, target: Identifier = TABLE) -> Intent:
    endpoint = Endpoint.COMMIT_TABLE if target is TABLE else Endpoint.REPLACE_VIEW
    return intent(endpoint, target, {"requirements": [], "updates": list(updates)})


def verdict(metadata: Json, *updates: Json, target: Identifier = TABLE) -> Verdict:
    return check(commit_intent(*updates, target=target), {target: loaded(metadata)})
