"""``blb proxy``: an OpenAI-compatible reverse proxy on this machine that adds the bias to every
request of its model.

Any language and tool that can set a base URL gets the bias. Requests go to the upstream with the
caller's own key; this process stores, logs and shows no key, prompt or completion.
"""

import asyncio
import logging
import re
import signal
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import aiohttp
from aiohttp import web

from blackbox_lb._version import __version__
from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.phase_requests import PhasedRequest
from blackbox_lb.deploy.proxy import clients
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.forward import HOP_BY_HOP, MAX_HEADER, REWRITTEN, Forwarder
from blackbox_lb.deploy.proxy.limits import GRACE, IDLE, MAX_BODY, TIMEOUT
from blackbox_lb.deploy.proxy.models import answer_models, wanted_model
from blackbox_lb.deploy.proxy.requests import LARGE, PREFIX, Rule, Upstream
from blackbox_lb.deploy.proxy.web_pages import PageRule
from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import printable

HEADER = "blackbox-lb-bias"
"""The header of an answer that names the bias of the request."""

_LONGEST = 31_536_000
"""Seconds of the longest wait that can be asked for."""
_LINGER = 10.0
"""Longest time in seconds that the rest of a refused body is still read."""
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_DECODED = frozenset(("", "identity", "gzip", "deflate"))
"""Codings of a part of an answer that is joined to others."""

log = logging.getLogger(__name__)
# aiohttp's own records of a malformed request hold the request, its key included.
_mute = logging.Logger("blackbox_lb.deploy.proxy.server.http", logging.CRITICAL + 1)


class Proxy:
    """``async with Proxy(rule, upstream).listening() as address: ...``; any number of requests at
    once.

    max_body: largest request body in bytes. timeout: seconds of silence before the upstream is
    abandoned. grace: seconds to finish the answers under way when the block ends; then they are
    cut. idle: seconds that a client may take for the head of a request, and stay silent within its
    body. most_connections: of clients at a time, by default what the limit of open files allows.
    hosts: further names of this machine that clients may use while the proxy is not reachable
    from others: otherwise a web page could point its own name here (DNS rebinding) and use an
    upstream that needs no key. origins: web pages besides those of this machine that may call it.

    Raises InputError: one of ``origins`` or ``hosts`` is none, a time that is no number of seconds;
    and, from ``listening``: the address cannot be used.
    """

    def __init__(
        self,
        rule: Rule,
        upstream: Upstream,
        *,
        max_body: int = MAX_BODY,
        timeout: float = TIMEOUT,
        grace: float = GRACE,
        idle: float = IDLE,
        most_connections: int | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        for name, seconds in (("timeout", timeout), ("grace", grace)):
            if not 0 <= seconds <= _LONGEST:
                raise InputError(
                    f"``{name}`` is {seconds}; give seconds, from 0 to {_LONGEST:,} (a year)"
                )
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise InputError(
                    f"--allow-host {quoted(host)} is no name that a client calls the proxy by; give"
                    " a host's name without scheme, port and blanks, as host.docker.internal"
                )
        self.rule = rule
        self.upstream = upstream
        self._idle = idle
        self._most_connections = most_connections or clients.most_connections()
        self._hosts = frozenset(name.lower() for name in hosts)
        self._guarded = False
        self._pages = PageRule(hosts, origins)
        self.max_body = max_body
        self.grace = grace
        self._reads_large = asyncio.Semaphore()
        self._embeds = any(row.injection.embeds for row in rule.names)
        self.biased: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._forwarder = Forwarder(upstream, timeout=timeout)

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve inside the block; return the base URL for clients. Port 0 takes a free one."""
        self._check_no_loop(host, port)
        self._guarded = is_loopback(host)
        server = clients.ConnectionLimit(
            self._answer,
            most=self._most_connections,
            keepalive_timeout=self._idle,
            lingering_time=min(_LINGER, self._idle),
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_mute,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
        )
        # aiohttp waits this long twice, and for ever at zero.
        runner = web.ServerRunner(server, shutdown_timeout=max(self.grace / 2, 0.001))
        await self._forwarder.open()
        with server.accepting():
            try:
                await runner.setup()
                name = host
                if ":" in host:
                    name = f"[{host}]"
                yield f"http://{name}:{await _listen(runner, host, port)}{PREFIX}"
            finally:
                try:
                    await runner.cleanup()
                finally:
                    await self._forwarder.close()

    @property
    def health(self) -> dict[str, Any]:
        served = [
            {
                "name": row.name,
                "model": row.model,
                "alias": row.alias,
                "entries": len(row.bias.entries),
            }
            | {"status": row.bias.status, "requests": self.biased[row.name]}
            for row in self.rule.names
        ]
        counts = {name: self.counts[name] for name in ("unbiased", "refused", "failed", "other")}
        return {
            "status": "ok",
            "version": __version__,
            "upstream": self.upstream.base,
            "biases": served,
            "requests": {"biased": self.biased.total(), **counts},
        }

    def _check_no_loop(self, host: str, port: int) -> None:
        every_interface = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not listened on
        mine = is_loopback(host) or host in every_interface
        same_host = self.upstream.host == host or (mine and is_loopback(self.upstream.host))
        if same_host and port == self.upstream.port:
            raise InputError(
                f"the upstream {self.upstream.base} is this proxy's own address; choose another"
                " --port"
            )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ErrorAnswer as answer:
            return self._error(request, answer)
        except ConnectionError:
            raise  # the client has disconnected; the server ends the rest
        except web.RequestPayloadError:
            broken = (
                "the request body is not what its headers say; send it whole, with its length or in"
                " chunks"
            )
            return self._error(request, ErrorAnswer(400, broken, code="bad_body"))
        except Exception as error:
            # Without the message, which may hold the request.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.exception("%s in blb proxy:\n%s", type(error).__name__, frames, exc_info=False)
            return self._error(
                request,
                ErrorAnswer(500, "blb proxy failed; its output says where", code="proxy_error"),
            )

    def _error(self, request: web.BaseRequest, answer: ErrorAnswer) -> web.StreamResponse:
        self.counts["failed" if answer.status >= 500 else "refused"] += 1
        if answer.status >= 500:
            log.warning("%d: %s", answer.status, answer)
        return web.Response(
            status=answer.status,
            body=answer.body,
            content_type="application/json",
            headers=self._pages.headers(request),
        )

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        self._check_host(request.headers.get("Host", ""))
        self._pages.check(request)
        target = request.raw_path
        path = target.partition("?")[0]
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise ErrorAnswer(
                501,
                "blb proxy carries no websockets; connect to the upstream itself",
                code="websocket_unsupported",
            )
        if path == "/health":
            return web.json_response(self.health, headers=self._pages.headers(request))
        codings = ",".join(request.headers.getall("Transfer-Encoding", ["chunked"]))
        if codings.strip().lower() != "chunked":
            raise ErrorAnswer(
                501,
                f"blb proxy reads no Transfer-Encoding {quoted(codings)}; send the body in chunks"
                " or with its length",
                code="transfer_coding_unsupported",
            )
        content = await self._content(request)
        if self.rule.applies(request.method, path):
            return await self._sample(request, target, content or b"")
        self.counts["other"] += 1
        models = wanted_model(request.method, path, self.rule.names)
        if models is not None:
            return await answer_models(self._forwarder, request, target, self.rule.names, models)
        async with await self._forwarder.ask(request, target, content) as answer:
            return await self._forwarder.stream(request, answer)

    def _check_host(self, host: str) -> None:
        """Raise ErrorAnswer 421 (RFC 9110, section 15.5.20) where the request is meant for another
        host.
        """
        name = host.lower()
        if re.fullmatch(r".*:\d*", host):
            name = name.rpartition(":")[0]
        if self._guarded and host and not is_loopback(name.strip("[]")) and name not in self._hosts:
            raise ErrorAnswer(
                421,
                f"blb proxy listens on this machine alone and is not {quoted(name)}; call it by"
                " 127.0.0.1 or localhost, or start it with --allow-host and that name",
                code="misdirected_request",
            )

    async def _sample(
        self, request: web.BaseRequest, target: str, content: bytes
    ) -> web.StreamResponse:
        codings = ",".join(request.headers.getall("Content-Encoding", ()))
        if {coding.strip().lower() for coding in codings.split(",")} - {"", "identity"}:
            raise ErrorAnswer(
                415,
                f"no bias can be added to a body with Content-Encoding {quoted(codings)}; send it"
                " uncompressed",
                code="compressed_body",
            )
        if len(content) > LARGE:
            # One at a time: each thread that computes makes everybody else wait its turn.
            async with self._reads_large:
                edit = await asyncio.to_thread(self.rule.edit, target, content)
        elif self._embeds:
            edit = await asyncio.to_thread(self.rule.edit, target, content)
        else:
            edit = self.rule.edit(target, content)
        if edit.served is None:
            self.counts["unbiased"] += 1
        else:
            self.biased[edit.served.name] += 1
        if edit.parts is not None and edit.served is not None:
            return await self._in_parts(
                request, edit.target, edit.parts, {HEADER: printable(edit.served.name)}
            )
        async with await self._forwarder.ask(request, edit.target, edit.content) as answer:
            if edit.served is None:
                return await self._forwarder.stream(request, answer)
            _check_no_redirect(answer)
            return await self._forwarder.stream(
                request, answer, {HEADER: printable(edit.served.name)}
            )

    async def _in_parts(
        self, request: web.BaseRequest, target: str, parts: PhasedRequest, extra: Mapping[str, str]
    ) -> web.StreamResponse:
        """The answer to a request that is sent phase by phase, joined as it comes."""
        out: web.StreamResponse | None = None
        while True:
            try:
                pending = await self._part(request, target, parts)
                _check_no_redirect(pending)
                _check_decoded(pending)
            except ErrorAnswer as error:
                if out is None:
                    raise
                await out.write(parts.failed(error.body))
                return out
            async with pending as answer:
                if answer.status != web.HTTPOk.status_code and out is not None:
                    await out.write(parts.failed(await answer.read()))
                    return out
                if answer.status != web.HTTPOk.status_code:
                    dropped = HOP_BY_HOP
                    if "Content-Encoding" in answer.headers:  # it was decoded
                        dropped |= {"content-encoding", "content-length"}
                    return await self._forwarder.stream(request, answer, extra, dropped)
                if parts.streams:
                    out = out or await self._forwarder.begin(
                        request, answer, extra, REWRITTEN - {"content-type"}
                    )
                    if not await self._forwarder.copy(request, answer, out, parts.feed):
                        return out
                    await out.write(parts.end())
                else:
                    headers = self._forwarder.headers_of(answer, REWRITTEN)
                    headers.update(extra)
                    with self._forwarder.faults():
                        content = await answer.read()
                    try:
                        parts.take(content)
                    except (ValueError, TypeError, KeyError, AttributeError):
                        return web.Response(
                            body=content, content_type=answer.content_type, headers=headers
                        )
                    if not parts.more:
                        return web.Response(
                            body=parts.answer, content_type="application/json", headers=headers
                        )
            if out is not None and not parts.more:
                return out

    async def _part(
        self, request: web.BaseRequest, target: str, parts: PhasedRequest
    ) -> aiohttp.ClientResponse:
        """The upstream's answer to the next part, unread; one that fails is asked for again."""
        body = parts.body()
        while True:
            try:
                answer = await self._forwarder.ask(
                    request, target, body, {"Accept-Encoding": "identity"}, decoded=True
                )
                pause = parts.pause(answer.status, answer.headers)
            except ErrorAnswer:
                pause = parts.pause()
                if pause is None:
                    raise
            else:
                if pause is None:
                    return answer
                answer.close()
            await asyncio.sleep(pause)

    async def _content(self, request: web.BaseRequest) -> bytes | None:
        """The body, None where there is none; at most ``max_body`` bytes of it are ever held."""
        if not request.body_exists:
            if "Content-Length" in request.headers:
                return b""
            return None
        self._check_size(request.content_length or 0)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        parts = []
        size = 0
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._idle) as silence:
                async for part in request.content.iter_any():
                    silence.reschedule(loop.time() + self._idle)
                    size += len(part)
                    self._check_size(size)
                    parts.append(part)
        except TimeoutError:
            raise ErrorAnswer(
                408,
                f"no byte of the request body came within {self._idle:g} s; send it whole",
                code="request_timeout",
            ) from None
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > self.max_body:
            raise ErrorAnswer(
                413,
                f"the request body is larger than {self.max_body:,} bytes, the limit; start blb"
                " proxy with a larger --max-body",
                code="request_too_large",
            )


def _check_no_redirect(answer: aiohttp.ClientResponse) -> None:
    """Raise ErrorAnswer 502 where the upstream sends a biased request elsewhere."""
    if 300 <= answer.status < 400:
        answer.close()
        raise ErrorAnswer(
            502,
            f"the upstream answers {answer.status}, go elsewhere, where the request would arrive"
            " without its bias; give blb proxy the final address as --upstream",
            code="upstream_redirect",
        )


def _check_decoded(answer: aiohttp.ClientResponse) -> None:
    """Raise ErrorAnswer 502 where a part of an answer is compressed in a way that is not read
    here.
    """
    encoding = ", ".join(answer.headers.getall("Content-Encoding", ())).strip().lower()
    if encoding not in _DECODED:
        answer.close()
        raise ErrorAnswer(
            502,
            f"the upstream answers {answer.status}, compressed as {quoted(encoding)} although it is"
            " asked not to, so the parts of a bias with phases cannot be joined; turn that off in"
            " the upstream",
            code="upstream_compressed",
        )


async def _listen(runner: web.ServerRunner, host: str, port: int) -> int:
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on {host}:{port} ({reason}); choose another ``host`` or ``port``"
        ) from None
    return int(runner.addresses[0][1])


async def serve(proxy: Proxy, host: str, port: int, started: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM, then let answers under way finish; a second signal ends at
    once.

    started: called with the base URL once requests are accepted.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    for number in before:
        signal.signal(number, on_signal)
    try:
        async with proxy.listening(host, port) as address:
            started(address)
            await stop.wait()
    finally:
        restore()
