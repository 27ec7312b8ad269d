"""What Schemathesis is told beside the description: with which keys to ask, what to leave alone, and to count."""

import atexit
import json
import os
import threading
from collections import Counter

import schemathesis

KEY = os.environ["FUZZ_KEY"]
OPERATOR_KEY = os.environ["FUZZ_OPERATOR_KEY"]
# The account, member and keys that the run asks with: a change of them would end it.
OWN = set(os.environ["FUZZ_OWN"].split(","))
# What is there for requests to find.
KEPT = set(os.environ["FUZZ_KEPT"].split(","))
ROWS = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'
MAX_TOKENS = 4

counts: Counter = Counter()
lock = threading.Lock()


@schemathesis.auth(refresh_interval=None, cache_by_key=lambda case, ctx: str(case.path.startswith("/operator")))
class Keys:
    def get(self, case, ctx):
        return OPERATOR_KEY if case.path.startswith("/operator") else KEY

    def set(self, case, data, ctx):
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_call(ctx, case, kwargs):
    method = case.method.upper()
    untouchable = OWN | KEPT if method == "DELETE" else OWN if method not in ("GET", "HEAD") else set()
    for name, value in (case.path_parameters or {}).items():
        if value in untouchable:
            case.path_parameters[name] = "none"


@schemathesis.hook
def map_body(ctx, body):
    keep_short(body)
    # No bytes that are drawn ever make a dataset; every second file is one.
    if isinstance(body, dict) and isinstance(body.get("file"), bytes) and len(body["file"]) % 2:
        body["file"] = ROWS
    return body


def keep_short(body):
    """An answer of hundreds of tokens shows nothing that one of four does not, and takes a hundred times as long."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens"):
        given = body.get(name)
        if isinstance(given, int) and MAX_TOKENS < given <= 4096:
            body[name] = MAX_TOKENS
    if "messages" in body or "prompt" in body:
        body.setdefault("max_tokens", MAX_TOKENS)
    for each in body.get("requests") or []:
        keep_short(each)


@schemathesis.hook
def after_call(ctx, case, response):
    try:
        why = f" {response.json()['error']['code']}"
    except Exception:
        why = ""
    with lock:
        counts[f"{case.method.upper()} {case.operation.path} {response.status_code}{why}"] += 1


@atexit.register
def write():
    with open(os.environ["FUZZ_COUNTS"], "w") as file:
        json.dump(counts, file)
