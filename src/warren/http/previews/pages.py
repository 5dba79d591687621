"""What a client of a preview gets instead of the preview: a page for those who ask for one, else a problem."""

from html import escape
from typing import Final

from starlette.responses import Response

from warren.http.problems import problem
from warren.model.errors import (
    NotFound,
    PortClosed,
    PortFailed,
    SandboxLost,
    SessionEnded,
    StoreAway,
    Unauthorized,
    WarrenError,
)

_TITLES: Final[dict[type[WarrenError], str]] = {
    Unauthorized: "This preview is private",
    PortClosed: "Nothing listens here yet",
    PortFailed: "The server did not answer",
    SessionEnded: "This session has ended",
    SandboxLost: "This sandbox is lost",
    NotFound: "There is no such preview",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}}</style></head>
<body><h1>{title}</h1><p>{text}</p><p>{remedy}</p></body></html>
"""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def error_answer(exc: WarrenError, accept: bytes) -> Response:
    answer = problem(exc)
    if b"text/html" in accept:
        title = next((text for kind, text in _TITLES.items() if isinstance(exc, kind)), "This preview cannot be shown")
        text = exc.public if isinstance(exc, StoreAway) else exc.message
        body = _PAGE.format(title=escape(title), text=escape(_sentence(text)), remedy=escape(_sentence(exc.remedy)))
        page = Response(body, exc.http_status, media_type="text/html")
        if "retry-after" in answer.headers:
            page.headers["retry-after"] = answer.headers["retry-after"]
        answer = page
    answer.headers.update(_HEADERS)
    return answer


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
