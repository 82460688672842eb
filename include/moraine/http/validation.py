"""Messages about invalid input, field by field."""

from __future__ import annotations

from pydantic import ValidationError

from moraine.errors import ValidationFailed

_MAX_ERRORS = 10


def explain(error: ValidationError, within: str = "") -> str:
    """One sentence per field. The caller's values are not repeated: they may be secrets."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    sentences = [
        f"{'.'.join(filter(None, [within, *map(str, problem['loc'])])) or 'body'}: {problem['msg']}"
        for problem in problems[:_MAX_ERRORS]
    ]
    if len(problems) > _MAX_ERRORS:
        sentences.append(f"and {len(problems) - _MAX_ERRORS} more")
    return "; ".join(sentences)


def no_nul(field: str, value: str | None) -> str | None:
    """PostgreSQL takes no NUL characters."""
    if value is not None and "\x00" in value:
        raise ValidationFailed(f"{field}: must not contain NUL characters.")
    return value
