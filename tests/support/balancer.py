"""A balancer before several gateways, as clients meet it when one of them dies or is slow."""

from __future__ import annotations

import http.client
import threading

from support.relay import Answer, Forward, Relay, Request

_HTML = (("Content-Type", "text/html"),)
BAD_GATEWAY = Answer(502, b"<h1>502 Bad Gateway</h1>", _HTML)
GATEWAY_TIMEOUT = Answer(504, b"<h1>504 Gateway Time-out</h1>", _HTML)


class Balancer(Relay):
    """Asks the first of its backends that is alive. The request in whose midst one dies is answered
    with 502, those after it go to the next."""

    def __init__(self, *backends: str) -> None:
        super().__init__(backends[0])
        self._backends = [Relay(backend) for backend in backends]
        self._lock = threading.Lock()
        self._impatient: threading.Event | None = None
        self._left_behind: list[threading.Thread] = []
        self.mutations: list[tuple[Request, int]] = []
        """With the status that each was answered."""

    def give_up_on_the_next(self, when: threading.Event) -> None:
        """Answer the next mutation with 504 at that moment, while its backend is still at it."""
        self._impatient = when

    def statuses(self, path: str) -> list[int]:
        """Of what was answered to mutations of a resource that is named so."""
        with self._lock:
            return [status for request, status in self.mutations if request.path.endswith(path)]

    def answer(self, request: Request, forward: Forward) -> Answer:
        if request.method in ("GET", "HEAD"):
            return self._pass(request)
        when, self._impatient = self._impatient, None
        if when is None:
            answer = self._pass(request)
        else:
            thread = threading.Thread(target=self._pass, args=[request], name="left behind")
            thread.start()
            self._left_behind.append(thread)
            when.wait()
            answer = GATEWAY_TIMEOUT
        with self._lock:
            self.mutations.append((request, answer.status))
        return answer

    def stop(self) -> None:
        super().stop()
        for thread in self._left_behind:
            thread.join()

    def _pass(self, request: Request) -> Answer:
        backend = self._backends[0]
        try:
            with backend.forwarding() as send:
                return send(request)
        except (OSError, http.client.HTTPException):
            with self._lock:
                if backend in self._backends[:-1]:
                    self._backends.remove(backend)
            return BAD_GATEWAY
