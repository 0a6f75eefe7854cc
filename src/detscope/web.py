"""Asking a web server for a file: addresses are checked, passwords never shown, redirects stay on the web."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPMessage, HTTPResponse, InvalidURL
from typing import IO, Any

from detscope.errors import InputError, UsageError
from detscope.faults import one_line

_SCHEMES = ("http", "https")
_SECRET = re.compile(r"(//)[^/\s@]*@")


def hide_secrets(text: object) -> str:
    """An address, or what somebody said of one: on one line, without the name and password in it."""
    return one_line(_SECRET.sub(r"\1", str(text)), 500)


def check_address(url: str) -> None:
    """Refuse what is no address of the web."""
    try:
        parts = urllib.parse.urlsplit(url)
        fits = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
        url.encode("ascii")
    except ValueError:  # brackets, ports and letters that no address has
        fits = False
    if not fits:
        raise UsageError(
            f"cannot download {hide_secrets(url)}: not a web address, only http and https are",
            "check the address",
        )


def open_url(url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> HTTPResponse:
    """The server's answer; a name and password in the address are told to that server alone."""
    check_address(url)
    parts = urllib.parse.urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=place).geturl(), headers=dict(headers or {}))
    if at:
        secret = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    try:
        answer: HTTPResponse = urllib.request.build_opener(_StaysOnTheWeb).open(request, timeout=timeout_s)
    except (InvalidURL, ValueError) as error:  # of the server's making: ours was checked
        raise InputError(
            f"{hide_secrets(url)}: the server sends on to no address: {hide_secrets(error)}",
            "check the address",
        ) from None
    return answer


class _StaysOnTheWeb(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other addresses of the web; urllib follows them to ftp, too."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Any:
        """The request that follows, or an error that is told like any other answer."""
        if urllib.parse.urlsplit(newurl).scheme not in _SCHEMES:
            said = f"{msg}, to {newurl}, which is no http or https address"
            raise urllib.error.HTTPError(req.full_url, code, said, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> Any:
        """Follow; the answer is let go of where it leads to no address at all."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302
