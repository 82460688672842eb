"""Puts the watcher together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from moraine.idempotency.store import open_async_pool
from moraine.ingest.filedrop.ledger import FileLedger
from moraine.ingest.filedrop.looks import Counts
from moraine.ingest.filedrop.model import drops_of
from moraine.ingest.filedrop.prefix import Prefix
from moraine.ingest.filedrop.watcher import Watcher
from moraine.ingest.intake import Intake, SettledFeed
from moraine.ingest.ledger import DoorLedger
from moraine.settings import Settings
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage

# One has the lock, and one is for whatever is not about a single file.
_MORE_CONNECTIONS = 2


async def watch(
    url: str, settings: Settings, properties_of: Callable[[str], Mapping[str, str]]
) -> Counts:
    """Watch once; `properties_of` has what opens the store of a prefix, by its name."""
    filedrop = settings.ingest.filedrop
    drops = drops_of(filedrop)
    size = filedrop.files_at_once + _MORE_CONNECTIONS
    with ExitStack() as opened:
        async with open_async_pool(url, size=size) as pool:
            ledger, files = DoorLedger(pool), FileLedger(pool)
            # Files are asked for by their keys: nobody listens to the feed.
            feed = SettledFeed(url, ledger)
            intake = Intake(settings.ingest, ledger, feed, settings.workspace)
            prefixes = [
                Prefix(
                    drop,
                    opened.enter_context(Storage(Credentials(properties_of(drop.name)))),
                    files,
                    intake,
                    filedrop,
                )
                for drop in drops
            ]
            return await Watcher(prefixes, files, filedrop.run_duration).watch()
