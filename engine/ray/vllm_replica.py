"""A model on Ray Serve LLM: vLLM as the replica, by Ray's own integration, behind a door that wants a token.

A replica fetches the files of base and adapter from the service, compares each with its hash, and takes requests when
vLLM gives the probabilities that the trainer kept.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
from functools import partial
from pathlib import Path

from fastapi import Depends, HTTPException, Request
from ray import serve
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.deployment import LLMServer
from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from starlette.responses import Response

from engine.ray.verification import WRONG_TOKEN, has_token, require_trained_answers
from trainer.remote.inputs import fetch
from trainer.remote.run import run_folder
from trainer.remote.service import Service

BASE = "base"
# Ray takes what follows a colon for the name of an adapter.
ADAPTER = f"{BASE}:adapter"
# How long a start waits for a service that is away.
PATIENCE_SECONDS = 60


class FetchedAdapter:
    """In place of Ray's own loader of adapters, which knows buckets alone and compares no hashes."""

    def __init__(self, path: Path) -> None:
        self.model_id, self.local_path = ADAPTER, str(path)

    async def load_model_from_config(self, lora_model_id: str, llm_config: LLMConfig) -> "FetchedAdapter":
        if lora_model_id != self.model_id:
            raise HTTPException(404, f"There is no adapter '{lora_model_id}' here.")
        return self


class VerifiedServer(LLMServer):
    """Ray's server of vLLM, with weights that have been verified.

    `config`: of Ray's LLMConfig, without the place of the weights. `model`: {url, token, files: [{path, sha256,
    size_bytes, cache}]}, in which paths begin with `base/` or `adapter/`.
    """

    async def __init__(self, llm_config: LLMConfig, *, config: dict, model: dict) -> None:
        self._service = Service(model["url"], model["token"], PATIENCE_SECONDS)
        scratch = Path(os.environ.get("TUNERY_RUN_DIR") or tempfile.gettempdir())
        with contextlib.ExitStack() as kept:
            # The next replica on this machine removes what a killed one left.
            folder = kept.enter_context(run_folder(scratch))
            await asyncio.to_thread(self._fetch, model["files"], folder, scratch / "tunery-cache")
            adapter = FetchedAdapter(folder / "adapter") if (folder / "adapter").exists() else None
            await super().__init__(described(config, folder / "base"), model_downloader=lambda **_: adapter)
            if adapter:
                await self.engine.resolve_lora(adapter)
            await require_trained_answers(
                "vLLM",
                tuned=ADAPTER if adapter else BASE,
                origin=BASE,
                score=self._score,
                get=partial(asyncio.to_thread, self._service.get),
                post=partial(asyncio.to_thread, self._service.post),
            )
            # vLLM may read the files again.
            self._kept = kept.pop_all()

    async def __del__(self) -> None:
        if kept := getattr(self, "_kept", None):
            kept.close()
        await super().__del__()

    def _fetch(self, files: list[dict], folder: Path, cache: Path) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        for file in files:
            target = folder / file["path"]
            fetch(self._service, file, target, cache)
            # Only the size of a kept file was compared.
            with target.open("rb") as source:
                if hashlib.file_digest(source, "sha256").hexdigest() != file["sha256"]:
                    (cache / file["sha256"]).unlink(missing_ok=True)
                    raise RuntimeError(f"{file['path']} has another hash than the model's")

    async def _score(self, model: str, rows: list[dict]) -> list[dict]:
        """The log-probability of each target, of one row after the other."""
        scored = []
        for row in rows:
            tokens = row["tokens"]
            request = CompletionRequest(model=model, prompt=tokens, max_tokens=1, temperature=0, prompt_logprobs=0)
            [answer] = [answer async for answer in self.engine.completions(request)]
            if getattr(answer, "error", None):
                raise RuntimeError(f"vLLM refused a row of the training: {answer.error.message}")
            given = answer.choices[0].prompt_logprobs
            scored.append({"logprobs": [given[position][tokens[position]].logprob for position in row["targets"]]})
        return scored


class Door(OpenAiIngress):
    """Ray's ingress for one model, whose answers say which weights they are of."""

    def __init__(self, llm_deployments: dict, model_cards: dict, *, served: str, weights: str) -> None:
        super().__init__(llm_deployments, model_cards)
        self._served, self._weights = served, weights

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        return await self._answer(super().chat, body, request)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        return await self._answer(super().completions, body, request)

    async def _answer(self, ask, body, request: Request) -> Response:
        if body.model != self._served:
            raise HTTPException(404, f"There is no model '{body.model}' here.")
        response = await ask(body, request)
        response.headers["x-weights"] = self._weights
        return response


def described(config: dict, source: Path | None = None) -> LLMConfig:
    place = {"model_source": str(source)} if source else {}
    return LLMConfig(**config, model_loading_config={"model_id": BASE, **place})


def build(args: dict):
    """The application of the arguments that `vllmApplication` (server/platform/ray/vllm-application.ts) writes."""

    token_sha256 = args["token_sha256"]

    def require_token(request: Request) -> None:
        if not has_token(request.headers, token_sha256):
            raise HTTPException(401, WRONG_TOKEN)

    server = build_llm_deployment(
        described(args["config"]),
        deployment_cls=VerifiedServer,
        bind_kwargs={"config": args["config"], "model": args["model"]},
        override_serve_options={"name": "Vllm"},
    )
    guarded = [Depends(require_token)]
    ingress = make_fastapi_ingress(
        Door,
        endpoint_map={
            "chat": lambda app: app.post("/v1/chat/completions", dependencies=guarded),
            "completions": lambda app: app.post("/v1/completions", dependencies=guarded),
        },
    )
    has_adapter = any(file["path"].startswith("adapter/") for file in args["model"]["files"])
    return serve.deployment(ingress, name="Door", ray_actor_options={"num_cpus": 0}).bind(
        {BASE: server}, {BASE: None}, served=ADAPTER if has_adapter else BASE, weights=args["weights"]
    )
