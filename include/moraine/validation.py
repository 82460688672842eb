"""Says what is wrong with a caller's input, field by field."""

from __future__ import annotations

from pydantic import ValidationError

_MOST_ERRORS = 10


def explain(error: ValidationError, within: str = "") -> str:
    """One sentence per field. The caller's values are not repeated: they may be secrets."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    sentences = [
        f"{'.'.join(filter(None, [within, *map(str, problem['loc'])])) or 'body'}: {problem['msg']}"
        for problem in problems[:_MOST_ERRORS]
    ]
    if len(problems) > _MOST_ERRORS:
        sentences.append(f"and {len(problems) - _MOST_ERRORS} more")
    return "; ".join(sentences)
