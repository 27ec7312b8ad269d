"""The client of the service on a cluster's machine: what it tries again, and what ends the run."""

import fcntl
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trainer.remote.run import run_folder
from trainer.remote.service import RunEnded, Service


@pytest.fixture
def service():
    """A service whose answers are functions of the handler, one for each request; the last one stays."""
    answers = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answers.pop(0)(self) if len(answers) > 1 else answers[0](self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield Service(f"http://127.0.0.1:{server.server_port}", "token"), answers
    server.shutdown()
    server.server_close()


def answer(status, text, length=None):
    def send(handler):
        handler.send_response(status)
        handler.send_header("content-length", str(len(text) if length is None else length))
        handler.end_headers()
        handler.wfile.write(text.encode())
        handler.close_connection = True

    return send


@pytest.mark.parametrize(
    "first",
    [
        answer(200, '{"spec"', length=100),
        answer(200, "<html>Bad gateway</html>"),
        answer(503, "busy"),
        lambda handler: handler.wfile.write(b"what?\r\n\r\n"),
    ],
    ids=["cut off", "a proxy's page", "overloaded", "no HTTP"],
)
def test_answer_that_is_none_is_asked_for_again(service, first):
    client, answers = service
    answers += [first, answer(200, '{"spec": 1}')]
    assert client.get("spec") == {"spec": 1}


@pytest.mark.parametrize("status", [401, 410])
def test_a_run_that_is_not_wanted_ends_at_once(service, status):
    client, answers = service
    answers += [answer(status, "")]
    with pytest.raises(RunEnded):
        client.get("spec")


def test_file_with_another_hash_is_not_kept(service, tmp_path):
    client, answers = service
    wrong = tmp_path / "file"
    answers += [answer(200, "other"), answer(410, "")]
    with pytest.raises(RunEnded):
        client.download("files/x", wrong, "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_run_removes_what_killed_runs_of_its_installation_left_a_day_ago_and_nothing_else(tmp_path, capfd):
    def left(name, days):
        folder = tmp_path / f"tunery-run-{name}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/weights").write_text("weights")
        (folder / "lock").touch()
        then = time.time() - days * 86_400
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (then, then))
        return folder

    old, young, foreign, running = left("a1-old", 2), left("a1-young", 0.5), left("b2-old", 2), left("a1-running", 2)
    with (running / "lock").open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with run_folder(tmp_path, "a1") as folder:
            assert folder.name.startswith("tunery-run-a1-")
            assert [path.exists() for path in (old, young, foreign, running)] == [False, True, True, True]
    assert not folder.exists()
    assert "a1-old" in capfd.readouterr().err
