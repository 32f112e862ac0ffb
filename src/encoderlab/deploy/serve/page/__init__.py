"""The page of a server at `/`: its files, sent unchanged, under a strict content security policy."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from encoderlab.deploy.serve.http import SECURITY

OWN = files("encoderlab") / "deploy" / "serve" / "page"
SHARED = files("encoderlab") / "pages" / "templates"  # the style of all our pages
FILES = {
    "/": (OWN / "index.html", "text/html"),
    "/page/serve.css": (OWN / "serve.css", "text/css"),
    "/page/serve.js": (OWN / "serve.js", "text/javascript"),
    "/page/theme.js": (OWN / "theme.js", "text/javascript"),
    "/page/page.css": (SHARED / "page.css", "text/css"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def routes() -> list[Route]:
    """The routes of the page; it contains nothing of the model, so it needs no key."""
    return [Route(path, _sent, methods=["GET"]) for path in FILES]


async def _sent(request: Request) -> Response:
    file, kind = FILES[request.url.path]
    headers = {**SECURITY, "content-security-policy": POLICY, "referrer-policy": "no-referrer"}
    return Response(file.read_bytes(), media_type=kind, headers=headers)
