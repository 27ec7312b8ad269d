"""Schemathesis hooks: which keys to use, which resources to leave alone, and counts of responses."""

import atexit
import itertools
import json
import os
import threading
from collections import Counter
from urllib.parse import quote

import requests
import schemathesis

KEY = os.environ["FUZZ_KEY"]
OPERATOR_KEY = os.environ["FUZZ_OPERATOR_KEY"]
# The account, member and keys of the run itself: changing them would end it.
OWN = set(os.environ["FUZZ_OWN"].split(","))
# The sessions of the operations that a key does not do, by operation.
SESSIONS = json.loads(os.environ["FUZZ_SESSIONS"])
# Resources that requests can find.
KEPT = set(os.environ["FUZZ_KEPT"].split(","))
# The objects that an operation may end: ids by the names of its path parameters.
SPARES = json.loads(os.environ["FUZZ_SPARES"])
# Two lines: a file that is JSON as a whole would be read as such, and not as the text that the description promises.
ROWS = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n' * 2
URL = os.environ["FUZZ_URL"]
JOBS = "/fine-tuning/jobs"
ESTIMATE = "/fine-tuning/jobs/estimate"
EVENTS = "/fine-tuning/jobs/{job_id}/events"
EXPORTS = "/exports"
PRESENCE = "/user/presence"
DELETE_STORED = "/chat/completions/delete"
EXPORT_EVENTS = "/exports/{export_id}/events"
# Each estimate runs some training steps.
MAX_ESTIMATES = 20
MAX_TOKENS = 4

counts: Counter = Counter()
jobs: list[str] = []
exports: list[str] = []
lock = threading.Lock()
addresses = itertools.count()


@schemathesis.auth(refresh_interval=None, cache_by_key=lambda case, ctx: str(case.path.startswith("/operator")))
class Keys:
    def get(self, case, ctx):
        return OPERATOR_KEY if case.path.startswith("/operator") else KEY

    def set(self, case, data, ctx):
        if session := SESSIONS.get(f"{case.method.upper()} {case.operation.path}"):
            case.cookies = {**(case.cookies or {}), session["name"]: session["token"]}
            case.headers = {**(case.headers or {}), "X-CSRF-Token": session["csrf"]}
            return
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_call(ctx, case, kwargs):
    # Another client address for each case: after a hundred requests without a key, one address gets 429 instead of 401.
    number = next(addresses)
    address = f"198.18.{number // 256 % 256}.{number % 256}"
    case.headers = {**(case.headers or {}), "X-Forwarded-For": address}
    method = case.method.upper()
    spare = SPARES.get(f"{method} {case.operation.path}")
    untouchable = OWN | KEPT if spare else OWN if method not in ("GET", "HEAD") else set()
    if any(value in untouchable for value in (case.path_parameters or {}).values()):
        case.path_parameters.update(spare or dict.fromkeys(case.path_parameters, "none"))
    # It would delete the stored answers that other requests are to find.
    if case.operation.path == DELETE_STORED and isinstance(case.body, dict):
        chosen = case.body.get("filter")
        if isinstance(chosen, dict) and isinstance(chosen.get("model", ""), str):
            case.body["filter"] = {**chosen, "model": "none"}
    if case.operation.path == PRESENCE:
        case.query = {**(case.query or {}), "wait_seconds": 0}
    # Following the events would last until the job's end.
    if case.operation.path == EVENTS and case.path_parameters["job_id"] not in KEPT:
        cancel(case.path_parameters["job_id"])
    if case.operation.path == EXPORT_EVENTS and case.path_parameters["export_id"] not in KEPT:
        delete_export(case.path_parameters["export_id"])
    if case.operation.path == ESTIMATE and succeeded(ESTIMATE) >= MAX_ESTIMATES and isinstance(case.body, dict):
        case.body["dataset_id"] = "none"


def cancel(job_id):
    path = quote(str(job_id), safe="")
    requests.post(f"{URL}/fine-tuning/jobs/{path}/cancel", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)


def delete_export(export_id):
    path = quote(str(export_id), safe="")
    requests.delete(f"{URL}/exports/{path}", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)


def succeeded(path):
    return sum(count for name, count in counts.items() if name.startswith(f"POST {path} 20"))


@schemathesis.hook
def map_body(ctx, body):
    keep_short(body)
    # Random bytes are never a valid dataset, so every second file is one.
    if isinstance(body, dict) and isinstance(body.get("file"), bytes) and len(body["file"]) % 2:
        body["file"] = ROWS
    return body


def keep_short(body):
    """Limits answers to a few tokens: hundreds show nothing more and take a hundred times as long."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens"):
        given = body.get(name)
        if isinstance(given, int) and MAX_TOKENS < given <= 4096:
            body[name] = MAX_TOKENS
    if "messages" in body or "prompt" in body:
        body.setdefault("max_tokens", MAX_TOKENS)
    given = body.get("requests")
    for each in given if isinstance(given, list) else []:
        keep_short(each)


@schemathesis.hook
def after_call(ctx, case, response):
    try:
        answer = response.json()
    except Exception:
        answer = None
    # A deployment tells its own error in a field of that name.
    failed = answer.get("error") if isinstance(answer, dict) else None
    error = failed.get("code", "") if isinstance(failed, dict) else ""
    with lock:
        counts[f"{case.method.upper()} {case.operation.path} {response.status_code} {error}".strip()] += 1
        # One training at a time: hundreds in the queue would block the machine.
        if case.operation.path == JOBS and response.status_code == 201:
            jobs.append(answer["id"])
            if len(jobs) > 1:
                cancel(jobs.pop(0))
        if case.operation.path == EXPORTS and response.status_code == 201:
            exports.append(answer["id"])
            if len(exports) > 1:
                delete_export(exports.pop(0))


@atexit.register
def write():
    with open(os.environ["FUZZ_COUNTS"], "w") as file:
        json.dump(counts, file)
