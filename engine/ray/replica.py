"""A replica of Ray Serve that starts the engine as its child, and passes requests on to it, answers streamed.

It takes requests only when the engine has loaded the files of its target, each compared by its hash, answers with
the weights that were asked for, and gives the probabilities that the trainer kept.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.ray.verification import WRONG_TOKEN, has_token, require_trained_answers

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
CHUNK_BYTES = 1 << 20
# Headers of one connection, which are not passed on.
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "authorization"}


@serve.deployment(name="Engine")
class Engine:
    def __init__(
        self,
        base: dict,
        adapters: list[dict],
        threads: int,
        node: str,
        token_sha256: str,
        files_token: str | None = None,
        weights: str | None = None,
        service_url: str | None = None,
        projector: dict | None = None,
    ) -> None:
        self._base, self._projector, self._adapters, self._token_sha256 = base, projector, adapters, token_sha256
        self._files_token, self._weights, self._service_url = files_token, weights, service_url
        self._threads, self._node = threads, node
        self._folder = Path(tempfile.mkdtemp(prefix="tunery-engine-"))
        self._started: asyncio.Task | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def _start(self) -> None:
        files = [await self._fetch(index, file) for index, file in enumerate([self._base, *self._adapters])]
        socket = self._folder / "engine.sock"
        arguments = ["--listen", f"unix:{socket}", "--threads", str(self._threads), "--parent-pipe", "--fixed-weights"]
        arguments += ["--model", f"{self._base['name']}={files[0]}"]
        if self._projector:
            arguments += ["--projector", str(await self._fetch(len(files), self._projector))]
        for index, (adapter, file) in enumerate(zip(self._adapters, files[1:], strict=True)):
            arguments += ["--adapter", f"{adapter['name']}={file}"]
            if own := adapter.get("projector"):
                path = await self._fetch(len(files) + 1 + index, own)
                arguments += ["--adapter-projector", f"{adapter['name']}={path}"]
        self._process = await asyncio.create_subprocess_exec(
            self._node,
            str(ROOT / "engine/main.ts"),
            *arguments,
            cwd=ROOT,
            # Its end tells the engine that this replica is gone.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        # It prints its address once it listens.
        line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        if not line:
            raise RuntimeError(f"the engine ended with status {await self._process.wait()}")
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            "http://engine", connector=aiohttp.UnixConnector(str(socket), limit=0), timeout=timeout
        )

        if self._weights is not None:
            await asyncio.wait_for(self._verify(), START_SECONDS)

    async def _verify(self) -> None:
        """What the engine says that it has in memory must be what was asked for."""
        model = (self._adapters or [self._base])[-1]["name"]
        questions = [("completions", {"prompt": "a", "max_tokens": 1}), ("embeddings", {"input": ["a"]})]
        while True:
            for path, fields in questions:
                async with self._session.post(f"/v1/{path}", json={"model": model, **fields}) as answer:
                    text, weights = await answer.text(), answer.headers.get("x-weights", "")
                if answer.status != 400:
                    break
            if answer.status != 200:
                raise RuntimeError(f"the engine does not answer with the model: {text[:300]}")
            if "sha256:pending" not in weights:
                break
            await asyncio.sleep(0.05)
        if weights != self._weights:
            raise RuntimeError(f"the engine has {weights} in place of {self._weights}")
        if self._service_url is not None and self._adapters:
            await self._compare(model)

    async def _compare(self, model: str) -> None:
        headers = {"authorization": f"Bearer {self._files_token}"}
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, raise_for_status=True) as session:

            async def ask(method: str, path: str, body: dict | None = None) -> dict:
                async with session.request(method, f"{self._service_url}/{path}", json=body) as answer:
                    return await answer.json()

            await require_trained_answers(
                "the engine",
                tuned=model,
                origin=self._base["name"],
                score=self._score,
                get=partial(ask, "GET"),
                post=partial(ask, "POST"),
            )

    async def _score(self, model: str, rows: list[dict]) -> list[dict]:
        async with self._session.post("/internal/score", json={"model": model, "rows": rows}) as answer:
            if answer.status != 200:
                raise RuntimeError(f"the engine does not score the rows of the training: {(await answer.text())[:300]}")
            return [{"logprobs": row["logprobs"]} for row in (await answer.json())["rows"]]

    async def _fetch(self, index: int, file: dict) -> Path:
        target, digest = self._folder / f"{index}.gguf", hashlib.sha256()
        headers = {"authorization": f"Bearer {self._files_token}"} if self._files_token else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(file["url"], headers=headers) as answer,
        ):
            answer.raise_for_status()
            with target.open("wb") as output:
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    digest.update(chunk)
                    output.write(chunk)
        if digest.hexdigest() != file["sha256"]:
            raise RuntimeError(f"the file of {file['name']} arrived with another hash")
        return target

    async def _ready(self) -> None:
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await self._started

    async def check_health(self) -> None:
        """Serve sends requests to a replica after its first check, and replaces one whose check fails."""
        await self._ready()
        if self._process.returncode is not None:
            raise RuntimeError(f"the engine ended with status {self._process.returncode}")

    async def __call__(self, request: Request) -> Response:
        if not has_token(request.headers, self._token_sha256):
            return JSONResponse({"error": {"message": WRONG_TOKEN}}, 401)
        await self._ready()
        headers = {name: value for name, value in request.headers.items() if name not in HOP_HEADERS}
        try:
            answer = await self._session.request(
                request.method,
                request.scope["path"].removeprefix(request.scope.get("root_path", "")),
                data=await request.body(),
                headers=headers,
            )
        except aiohttp.ClientError as problem:
            return JSONResponse({"error": {"message": f"The engine does not answer: {problem}"}}, 503)

        async def stream():
            # A client that has gone ends this generator, and with it the engine's work.
            try:
                async for chunk in answer.content.iter_any():
                    yield chunk
            finally:
                answer.close()

        passed = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
        return StreamingResponse(stream(), answer.status, passed)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._process and self._process.returncode is None:
                os.kill(self._process.pid, 15)
        shutil.rmtree(self._folder, ignore_errors=True)


def build(args: dict):
    """The application of the arguments that `engineApplication` (server/platform/ray/engine-application.ts) writes."""
    names = (
        "base",
        "adapters",
        "threads",
        "node",
        "token_sha256",
        "files_token",
        "weights",
        "service_url",
        "projector",
    )
    return Engine.bind(**{name: args[name] for name in names if name in args})
