"""What the gateway costs: against the catalog itself and against a plain reverse proxy.

One catalog, Caddy and the gateway before it, and one load generator for all, each of whose clients
sends its requests one after the other. Commits set a property; each client has its own table, so
that none is refused. Rounds are interleaved and change their order; what counts are medians.

The load, the catalog and the database share the same cores, so a contestant that uses more of the
processor makes all the others slower as well. The notes say which process uses how much.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

from rich.console import Console
from rich.progress import track

from gateway_site import NAMESPACE, Door, Site, running_site, table_name
from load import KEY, NUMBER, Load, LoadGenerator, running_load
from report import Report

CLIENTS = (1, 8, 64)
ROUNDS = {"get": 21, "commit": 21}
SECONDS = {"get": 0.4, "commit": 1.0}
WARM_UP = 3.0
PROFILE = (
    "What the gateway does meanwhile, sampled once by py-spy at 8 clients on a busy machine. A "
    "read: the HTTP client 36 %, the two writes of an answer 27 %, the event loop 10 %, the "
    "gateway's own code 9 %.",
    "A keyed commit: the two statements to the ledger 34 %, the answer 12 %, the HTTP client 12 %, "
    "fingerprint and intent 7 %. Its latency is the catalog's, and the reservation's way to the "
    "disk.",
    "A replay: one statement to the ledger 22 %, a load of the table from the catalog 21 %, the "
    "log 7 %, the answer 7 %, the fingerprint 4 %. It writes nothing to the ledger.",
)
console = Console()


@dataclass(frozen=True)
class Contestant:
    request: str
    """`get` or `commit`."""
    name: str
    door: Door
    key: Callable[[int], str | None] = lambda _client: None
    """The Idempotency-Key that a client sends."""

    def load(self, clients: int, seconds: float | None = None) -> Load:
        requests = [self._request(client) for client in range(clients)]
        return Load(self.door.port, requests, seconds or SECONDS[self.request])

    def _request(self, client: int) -> str:
        path = f"{self.door.path}/v1/namespaces/{NAMESPACE}/tables/{table_name(client)}"
        headers = {"Host": f"127.0.0.1:{self.door.port}", "Accept": "application/json"}
        if self.request == "get":
            return _http("GET", path, headers)
        if key := self.key(client):
            headers["Idempotency-Key"] = key
        return _http("POST", path, headers, _commit(self.name))


def _commit(contestant: str) -> str:
    # A replay says what the first request with its key said.
    value = "0" * len(NUMBER) if contestant == "replay" else NUMBER
    update = {"action": "set-properties", "updates": {"bench": value}}
    return json.dumps({"requirements": [], "updates": [update]})


def _http(method: str, path: str, headers: dict[str, str], body: str = "") -> str:
    if body:
        length = len(body.replace(NUMBER, "0" * 10))
        headers = {**headers, "Content-Type": "application/json", "Content-Length": str(length)}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", body])


def contestants_at(site: Site) -> list[Contestant]:
    own_keys = [str(uuid4()) for _ in range(max(CLIENTS))]
    return [
        Contestant("get", "direct", site.catalog),
        Contestant("get", "proxy", site.proxy),
        Contestant("get", "gateway", site.gateway),
        Contestant("commit", "direct", site.catalog),
        Contestant("commit", "proxy", site.proxy),
        Contestant("commit", "gateway", site.gateway),
        Contestant("commit", "keyed", site.gateway, lambda _client: KEY),
        Contestant("commit", "replay", site.gateway, lambda client: own_keys[client]),
    ]


class Measurements:
    """Of every contestant with every number of clients, a value for each round."""

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = defaultdict(list)
        self._used: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, site: Site, generator: LoadGenerator, one: Contestant, clients: int) -> None:
        before = site.cpu_seconds()
        sample = generator.put(one.load(clients))
        after = site.cpu_seconds()
        name = f"{one.request}_{one.name}_{clients}"
        self.figures[f"{name}_p50_ms"].append(sample.p50)
        self.figures[f"{name}_p99_ms"].append(sample.p99)
        self.figures[f"{name}_per_s"].append(sample.per_second)
        for part, seconds in after.items():
            self._used[name][part].append(1000 * (seconds - before[part]) / sample.count)

    def p50(self, name: str) -> float:
        return median(self.figures[f"{name}_p50_ms"])

    def processor_time(self, name: str) -> str:
        """Of one request, by part, as a sentence."""
        used = {part: median(values) for part, values in self._used[name].items()}
        parts = (f"{part} {ms:.2f}" for part, ms in used.items() if ms >= 0.01)
        return f"{name}: milliseconds of processor per request: {', '.join(parts)}."


def main() -> None:
    found = Measurements()
    with (
        tempfile.TemporaryDirectory(prefix="moraine-bench-") as home,
        running_site(Path(home), tables=max(CLIENTS)) as site,
        running_load() as generator,
    ):
        contestants = contestants_at(site)
        for one in contestants:
            generator.put(one.load(max(CLIENTS), WARM_UP))  # and makes the answers to replay
        for request in ROUNDS:
            peers = [one for one in contestants if one.request == request]
            for number in track(range(ROUNDS[request]), request, console=console):
                shift = number % len(peers)
                for clients in CLIENTS:
                    for one in peers[shift:] + peers[:shift]:
                        found.take(site, generator, one, clients)
    write_report(found)


def write_report(found: Measurements) -> None:
    report = Report("gateway", "The gateway, the catalog itself, and a plain proxy")
    for name, values in found.figures.items():
        report.figure(name, values)
    direct = found.p50("get_direct_8")
    added = {way: found.p50(f"get_{way}_8") - direct for way in ("gateway", "proxy")}
    report.ratio("get_overhead_vs_plain_proxy", added["gateway"] / added["proxy"], aim="2 or less")
    for name, way, aim in (
        ("keyed_commit_vs_direct", "keyed", "1.3 or less"),
        ("replay_vs_direct", "replay", "below 1"),
    ):
        for clients in (1, 8):
            ratio = found.p50(f"commit_{way}_{clients}") / found.p50(f"commit_direct_{clients}")
            report.ratio(f"{name}_{clients}", ratio, aim=aim)
    for name in ("get_direct", "get_proxy", "get_gateway", "commit_direct", "commit_keyed"):
        report.note(found.processor_time(f"{name}_8"))
    report.note(found.processor_time("commit_replay_8"))
    for line in PROFILE:
        report.note(line)
    report.finish()


if __name__ == "__main__":
    main()
