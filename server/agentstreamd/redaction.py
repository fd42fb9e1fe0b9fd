"""Taking out what looks like a secret: of the log, and of errors and output that agents leave.

A last line of defence. Agents quote keys in their errors, and programs print environments when
they crash; what the daemon itself knows to be secret never gets this far.
"""

import re
from collections.abc import Sequence

REMOVED = "[redacted]"

# A value alone, by its form: keys of model providers, forges and clouds, JSON web tokens.
_BY_FORM = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|npm_|hf_|sgamp_)[A-Za-z0-9_-]{16,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
# A value by what stands before it; that stays.
_BY_NAME = re.compile(
    r"(\bBearer\s+"
    r"|://[^\s/:@]{1,256}:(?=[^\s/@]{1,256}@)"
    r"|\b(?:[A-Za-z0-9]{1,64}[_-]){0,8}(?:api[_-]?key|access[_-]?key|token|secret|password|passwd)"
    r"[\"']?\s{0,4}[=:]\s{0,4}[\"']?)"
    r"[^\s\"',;@}]{8,}",
    re.IGNORECASE,
)


def redacted(text: str, known: Sequence[str] = ()) -> str:
    """The text with `REMOVED` in the place of what looks like a secret.

    So it is with the values of `known`, whatever they look like; where one holds another, it must
    come first.
    """
    for value in known:
        text = text.replace(value, REMOVED)
    return _BY_NAME.sub(rf"\1{REMOVED}", _BY_FORM.sub(REMOVED, text))
