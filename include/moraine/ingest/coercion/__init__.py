"""JSON lines become Arrow tables. Pure, without I/O."""

from moraine.ingest.coercion.blocks import Coerced, Each, coerce, coerce_each
from moraine.ingest.coercion.json_lines import LineRejected

__all__ = ["Coerced", "Each", "LineRejected", "coerce", "coerce_each"]
