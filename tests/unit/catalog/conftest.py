from __future__ import annotations

from support.told_server import server

__all__ = ["server"]
