"""``blb proxy``: an OpenAI-compatible reverse proxy on this machine that adds the bias to every
request of its model.

Any language and tool that can set a base URL gets the bias. Requests go to the upstream with the
caller's own key; this process stores, logs and shows no key, prompt or completion.
"""

import asyncio
import logging
import signal
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

import aiohttp
from aiohttp import web

from blackbox_lb.deploy.injection import quoted, route
from blackbox_lb.deploy.part_http import OK, PartAnswer, PartSending, returned
from blackbox_lb.deploy.part_requests import PartRequest
from blackbox_lb.deploy.proxy.bodies import LARGE, Edit, LargeBodies, ServedBiases
from blackbox_lb.deploy.proxy.callers import Callers
from blackbox_lb.deploy.proxy.clients import ClientServer, read_body
from blackbox_lb.deploy.proxy.deciding import DecisionService
from blackbox_lb.deploy.proxy.decisions import PATHS, ServedQuestions
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.limits import GRACE, IDLE, MAX_BODY, PREFIX
from blackbox_lb.deploy.proxy.looking import trouble, unready
from blackbox_lb.deploy.proxy.metrics import Metrics
from blackbox_lb.deploy.proxy.models import MODELS, models_answer
from blackbox_lb.deploy.proxy.own_pages import HEALTH, READY, health_page, is_own, log_line
from blackbox_lb.deploy.proxy.prompting import chat_fields
from blackbox_lb.deploy.proxy.upstream import (
    REWRITTEN,
    Upstream,
    check_no_redirect,
    check_seconds,
)
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.files import most_connections
from blackbox_lb.safety.http.clients import LONGEST_LINE
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import printable

HEADER = "blackbox-lb-bias"
"""The header of an answer that names the bias of the request."""
MOST_CLIENTS = 32_768
CLIENT_LEFT = 499
"""The status under which a request is counted whose client left, as nginx has it."""

_LINGER = 10.0
"""Longest time in seconds that the rest of a refused body is still read."""
_DECODED = frozenset(("gzip", "deflate", "br", "zstd"))
_ENCODING = frozenset(("content-encoding", "content-length"))

log = logging.getLogger(__name__)
# aiohttp's own records of a malformed request hold the request, its key included.
_mute = logging.Logger("blackbox_lb.deploy.proxy.server.http", logging.CRITICAL + 1)


class Proxy:
    """``async with Proxy(biases, upstream).listening() as address: ...``; any number of requests at
    once.

    Args:
        biases: by model names.
        upstream: the API that requests go to.
        questions: the mended ones; None where requests to decision endpoints are passed on.
        profile: of the upstream, for the chat requests by which questions are read.
        max_body: largest request body in bytes.
        grace: seconds to finish the answers under way when the block ends; then they are cut.
        idle: seconds that a client may take for the head of a request, and stay silent within its
            body.
        connections: most connections of clients at a time, by default what the limit of open files
            allows.
        hosts, origins: who may call it beside this machine, see ``Callers``.
        log_request: called with a line for each request, without its query, headers and body.

    Raises InputError: one of ``origins`` or ``hosts`` is none, a time that is no number of seconds;
    and, from ``listening``: the address cannot be used.
    """

    def __init__(
        self,
        biases: ServedBiases,
        upstream: Upstream,
        *,
        questions: ServedQuestions | None = None,
        profile: Profile | None = None,
        max_body: int = MAX_BODY,
        grace: float = GRACE,
        idle: float = IDLE,
        connections: int | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        log_request: Callable[[str], object] | None = None,
    ) -> None:
        check_seconds("grace", grace)
        self.biases = biases
        self.upstream = upstream
        self.metrics = Metrics([row.name for row in biases], biases.phrase_counts)
        self.questions = questions
        self._large = LargeBodies()
        self._decisions: DecisionService | None = None
        if questions is not None:
            self._decisions = DecisionService(
                questions, upstream, self.metrics, max_body, chat_fields(profile), self._large
            )
        self._max_body = max_body
        self._grace = grace
        self._idle = idle
        # Each may need one to the upstream, too.
        self._connections = connections or most_connections(MOST_CLIENTS, files_each=2)
        self._callers = Callers(hosts, origins)
        self._log_request = log_request

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve inside the block; return the base URL for clients. Port 0 takes a free one."""
        self._check_no_loop(host, port)
        self._callers.is_local = is_loopback(host)
        server = ClientServer(
            self._answer,
            most=self._connections,
            keepalive_timeout=self._idle,
            lingering_time=min(_LINGER, self._idle),
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_mute,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )
        async with self.upstream.connected():
            try:
                listener = await server.listen(host, port)
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise InputError(
                    f"cannot listen on {host}:{port} ({reason}); choose another ``host`` or"
                    " ``port``"
                ) from None
            name = f"[{host}]" if ":" in host else host
            try:
                yield f"http://{name}:{listener.sockets[0].getsockname()[1]}{PREFIX}"
            finally:
                listener.close()
                server.pre_shutdown()
                # aiohttp waits this long twice, and for ever at zero.
                await server.shutdown(max(self._grace / 2, 0.001))

    async def look(self) -> None:
        """Log in a sentence what will go wrong with the upstream."""
        models = [row.model for row in (*self.biases, *(self.questions or ()))]
        sentence = await trouble(self.upstream, models)
        if sentence:
            log.warning("%s", sentence)

    @property
    def health(self) -> dict[str, Any]:
        """What ``/healthz`` answers."""
        return health_page(self.upstream.base, self.biases, self.questions, self.metrics)

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
        loop = asyncio.get_running_loop()
        start = loop.time()
        status = CLIENT_LEFT
        try:
            answer = await self._answer_or_error(request)
            status = answer.status
            return answer
        finally:
            seconds = loop.time() - start
            if not is_own(request):
                self.metrics.answer(status, seconds)
            if self._log_request is not None:
                self._log_request(log_line(request, status, seconds))

    async def _answer_or_error(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._dispatch(request)
            if answer.status >= 500 and not is_own(request):
                self.metrics.failed["upstream_status"] += 1
            return answer
        except ErrorAnswer as refusal:
            error = refusal
        except ConnectionError:
            raise  # the client has disconnected; the server ends the rest
        except web.RequestPayloadError:
            error = ErrorAnswer(
                400,
                "the request body is not what its headers say; send it whole, with its length or in"
                " chunks",
                code="bad_body",
            )
        except Exception as fault:
            # Without the message, which may hold the request.
            frames = "".join(traceback.format_tb(fault.__traceback__))
            log.exception("%s in blb proxy:\n%s", type(fault).__name__, frames, exc_info=False)
            error = ErrorAnswer(500, "blb proxy failed; its output says where", code="proxy_error")
        if error.is_failure:
            self.metrics.failed[error.code] += 1
            log.warning("%d: %s", error.status, error)
        else:
            self.metrics.refused[error.code] += 1
        return web.Response(
            status=error.status,
            body=error.body,
            content_type="application/json",
            headers=self._callers.headers(request),
        )

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        self._callers.check(request)
        target = request.raw_path
        path = target.partition("?")[0]
        if is_own(request):
            headers = self._callers.headers(request)
            if path == HEALTH:
                return web.json_response(self.health, headers=headers)
            if path == READY:
                reason = await unready(self.upstream)
                if reason:
                    body = {"status": "not ready", "reason": reason}
                    return web.json_response(body, status=503, headers=headers)
                return web.json_response({"status": "ok"}, headers=headers)
            return web.Response(text=self.metrics.text, headers=headers)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise ErrorAnswer(
                501,
                "blb proxy carries no websockets; connect to the upstream itself",
                code="websocket_unsupported",
            )
        codings = ",".join(request.headers.getall("Transfer-Encoding", ["chunked"]))
        if codings.strip().lower() != "chunked":
            raise ErrorAnswer(
                501,
                f"blb proxy reads no Transfer-Encoding {quoted(codings)}; send the body in chunks"
                " or with its length",
                code="transfer_coding_unsupported",
            )
        content = await read_body(request, self._max_body, self._idle)
        decides = request.method == "POST" and path.rstrip("/") in PATHS
        if decides and self._decisions is not None:
            decision = await self._decisions.answer(request, path, content or b"")
            decision.headers.update(self._callers.headers(request))
            return decision
        if request.method == "POST" and route(path) is not None:
            return await self._sample(request, target, content or b"")
        self.metrics.other += 1
        if request.method == "GET" and path.rstrip("/") == MODELS and self.biases.aliased:
            async with await self.upstream.ask(request, target, None, is_plain=True) as answer:
                listed = await models_answer(self.upstream, answer, self.biases)
                if listed is None:
                    return await self._pass(request, answer, dropped=_decoded(answer))
                return listed
        return await self._pass(request, await self.upstream.ask(request, target, content))

    async def _sample(
        self, request: web.BaseRequest, target: str, content: bytes
    ) -> web.StreamResponse:
        """The answer to a request of an endpoint that samples, with the bias of its model."""
        codings = ",".join(request.headers.getall("Content-Encoding", ()))
        if {coding.strip().lower() for coding in codings.split(",")} - {"", "identity"}:
            raise ErrorAnswer(
                415,
                f"no bias can be added to a body with Content-Encoding {quoted(codings)}; send it"
                " uncompressed",
                code="compressed_body",
            )
        edit = await self._edit(target, content)
        if edit.served is None:
            self.metrics.unbiased += 1
            self._note_other(edit.other)
            answer = await self.upstream.ask(request, edit.target, edit.content)
            return await self._pass(request, answer)
        self.metrics.biased[edit.served.name] += 1
        extra = {HEADER: printable(edit.served.name)}
        if edit.parts is not None:
            return await self._in_parts(request, edit.target, edit.parts, extra)
        answer = await self.upstream.ask(request, edit.target, edit.content)
        check_no_redirect(answer)
        return await self._pass(request, answer, extra)

    def _note_other(self, model: str | None) -> None:
        """Count a request that goes out without a bias by its model, and log the first."""
        if model is None or not self.biases.known or not self.metrics.is_first_without(model):
            return
        if self.biases.others == "warn":
            log.warning(
                "no bias added: a request is for %s, and blb proxy has a bias for %s; ask for one"
                " of those, or start it with --model %s where that is the same model (--others pass"
                " says nothing)",
                model,
                self.biases.known,
                model,
            )

    async def _edit(self, target: str, content: bytes) -> Edit:
        if self.biases.embeds and len(content) <= LARGE:
            return await asyncio.to_thread(self.biases.edit, target, content)
        return await self._large.read(len(content), self.biases.edit, target, content)

    async def _in_parts(
        self, request: web.BaseRequest, target: str, parts: PartRequest, extra: Mapping[str, str]
    ) -> web.StreamResponse:
        """The answer to a request that is sent phase by phase, joined as it comes."""

        async def send(body: bytes) -> PartAnswer:
            answer = await self.upstream.ask(request, target, body, is_plain=True)
            check_no_redirect(answer)
            return PartAnswer(
                answer,
                answer.status,
                answer.headers,
                answer.read,
                partial(_pieces, answer),
                returned(answer.close),
            )

        sending = PartSending(parts, send, (ErrorAnswer,), asyncio.sleep)
        first = await sending.next()
        if parts.streams and first.status == OK:
            async with first.response as answer:
                out = await self._begin(request, answer, extra, REWRITTEN - {"content-type"})
                try:
                    await self._copy(request, sending.stream(first), out)
                except ErrorAnswer as error:
                    self.metrics.failed[error.code] += 1
                    await out.write(parts.failed(error.body))
                return out
        with self.upstream.faults():
            joined = await sending.joined(first)
            answer = joined.response
            content = joined.content
            if content is None:
                headers = self.upstream.headers_of(answer, _decoded(answer))
                content = await answer.read()
            else:
                headers = self.upstream.headers_of(answer, REWRITTEN)
                headers["Content-Type"] = "application/json"
        headers.update(extra)
        reason = answer.reason if joined.status == answer.status else None
        return web.Response(status=joined.status, reason=reason, body=content, headers=headers)

    async def _pass(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        extra: Mapping[str, str] | None = None,
        dropped: frozenset[str] = frozenset(),
    ) -> web.StreamResponse:
        """Send the answer on, piece by piece, with ``extra`` headers and without those
        ``dropped``. A broken answer stays visibly broken.
        """
        async with answer:
            out = await self._begin(request, answer, extra or {}, dropped)
            await self._copy(request, _pieces(answer), out)
            return out

    async def _begin(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        extra: Mapping[str, str],
        dropped: frozenset[str],
    ) -> web.StreamResponse:
        """An answer with the status and the headers of the upstream's but those ``dropped``."""
        headers = self.upstream.headers_of(answer, dropped)
        headers.update(extra)
        out = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        await out.prepare(request)
        return out

    async def _copy(
        self,
        request: web.BaseRequest,
        pieces: AsyncGenerator[bytes, None],
        out: web.StreamResponse,
    ) -> None:
        """Send the pieces of a body on. One that breaks off ends without its end."""
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await out.write(piece)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The status is sent already, so only a body without its end can show the failure.
            if request.transport is not None and not request.transport.is_closing():
                self.metrics.failed["upstream_broken"] += 1
                log.warning(
                    "the answer to a %s broke off (%s)", request.method, type(error).__name__
                )
                request.transport.close()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """A body, piece by piece as it was sent."""
    # Not iter_chunks(): on the second empty body of a process it never ends (aiohttp 3.14).
    while not answer.content.at_eof():
        piece, _ = await answer.content.readchunk()
        yield piece


def _decoded(answer: aiohttp.ClientResponse) -> frozenset[str]:
    """The headers that are wrong of an answer that aiohttp decodes as it is read."""
    if answer.headers.get("Content-Encoding", "").strip().lower() in _DECODED:
        return _ENCODING
    return frozenset()


async def serve(proxy: Proxy, host: str, port: int, started: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM, then let answers under way finish; a second signal ends at
    once.

    started: called with the base URL once requests are accepted.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        async with proxy.listening(host, port) as address:
            started(address)
            look = asyncio.create_task(proxy.look())
            await stop.wait()
            look.cancel()
    finally:
        restore()
