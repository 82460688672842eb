"""TLS: what listeners present and demand, what clients do, and a private CA to begin with."""

from moraine.tls.contexts import client_context

__all__ = ["client_context"]
