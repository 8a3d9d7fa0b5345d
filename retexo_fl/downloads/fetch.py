"""One file into memory: bounded in time and size, and checked."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import httpx

from retexo_fl.downloads.remote_file import Limits, Progress, RemoteFile
from retexo_fl.errors import DatasetError
from retexo_fl.proxies import http_client
from retexo_fl.units import counted

#: Of servers that are there, but not now.
_PASSING_STATUSES: Final = frozenset((502, 503, 504))


def fetch(file: RemoteFile, progress: Progress, limits: Limits) -> bytes:
    """Return the content of a file.

    Args:
        file: With its SHA-256.
        progress: Called as bytes arrive; a further attempt begins at zero again.
        limits: Of time and size.

    Raises:
        DatasetError: It cannot be had, or is not the file that was pinned.
        ConfigurationError: The environment names a proxy that cannot be used.
    """
    assert file.sha256 is not None, f"{file.name} has no pinned SHA-256"
    deadline = time.monotonic() + limits.total_s
    for attempt in range(limits.retries + 1):
        try:
            content = _attempt(file, progress, limits, deadline)
        except _Passing as failure:
            pause_s = limits.pause_s * 2**attempt
            if attempt == limits.retries or time.monotonic() + pause_s > deadline:
                raise DatasetError(f"{file.url}: {failure}") from failure
            time.sleep(pause_s)
        else:
            _check_content(file, content)
            return content
    raise AssertionError("the last attempt returns or raises")


class _Passing(Exception):
    """A failure that another attempt may not have."""


def _attempt(file: RemoteFile, progress: Progress, limits: Limits, deadline: float) -> bytes:
    timeout = httpx.Timeout(limits.silence_s, connect=limits.connect_s)
    # What is hashed is what was sent: no content coding.
    headers = {"Accept-Encoding": "identity", "User-Agent": "retexo-fl"}
    most = limits.most_bytes if file.size_bytes is None else file.size_bytes
    content = bytearray()
    try:
        with (
            http_client(timeout=timeout, headers=headers) as client,
            _followed(client, file.url, limits.redirects) as response,
        ):
            announced = _announced_bytes(response)
            _check_size(file, announced or 0, most)
            for part in response.iter_raw():
                content += part
                _check_size(file, len(content), most)
                progress(len(content), announced)
                if time.monotonic() > deadline:
                    raise DatasetError(f"{file.url}: not there after {limits.total_s:g} s")
    except httpx.TimeoutException as error:
        silence_s = limits.silence_s
        if isinstance(error, httpx.ConnectTimeout):
            silence_s = limits.connect_s
        raise _Passing(f"no answer within {silence_s:g} s") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise DatasetError(f"{file.url}: leads to no address ({error})") from error
    except httpx.TransportError as error:
        how = f"broke off after {counted(len(content), 'byte')}" if content else "cannot be reached"
        raise _Passing(f"{how} ({error or type(error).__name__})") from error
    return bytes(content)


@contextmanager
def _followed(client: httpx.Client, url: str, redirects: int) -> Iterator[httpx.Response]:
    """Yield the answer behind at most so many redirects, which must not leave HTTPS."""
    request = client.build_request("GET", url)
    for _ in range(redirects + 1):
        response = client.send(request, stream=True)
        try:
            following = response.next_request
            if following is None:
                _check_status(url, response.status_code)
                yield response
                return
            if request.url.scheme == "https" != following.url.scheme:
                raise DatasetError(f"{url}: is redirected from https to {following.url.scheme}")
            request = following
        finally:
            response.close()
    raise DatasetError(f"{url}: is redirected more than {counted(redirects, 'time')}")


def _check_status(url: str, status: int) -> None:
    if status == HTTPStatus.OK:
        return
    known = any(status == one for one in HTTPStatus)
    answer = f"answers {status}" + (f" {HTTPStatus(status).phrase}" if known else "")
    if status in _PASSING_STATUSES:
        raise _Passing(answer)
    raise DatasetError(f"{url}: {answer}; expected the file")


def _announced_bytes(response: httpx.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _check_size(file: RemoteFile, size_bytes: int, most: int) -> None:
    if size_bytes > most:
        raise DatasetError(f"{file.url}: is larger than {counted(most, 'byte')}; expected no more")


def _check_content(file: RemoteFile, content: bytes) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DatasetError(
            f"{file.url}: got {counted(len(content), 'byte')} with SHA-256 {found}; "
            f"expected {file.sha256}"
        )
