"""JSON lines become Arrow tables here; pure, without any I/O."""

from moraine.ingest.coercion.arrow_types import arrow_type
from moraine.ingest.coercion.blocks import Coerced, Each, coerce, coerce_each
from moraine.ingest.coercion.rejection import LineRejected

__all__ = ["Coerced", "Each", "LineRejected", "arrow_type", "coerce", "coerce_each"]
