"""Counts blocks of a dataset's file in several processes of `trainer.cli.count`, which end with this one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Lock
from typing import Any

from trainer.cli.count_lines import Block
from trainer.runtime.errors import JobError


class Worker:
    """A process with a tokenizer. Its stdin is open as long as this process runs; a second pipe brings its blocks."""

    def __init__(self, request: dict[str, Any]) -> None:
        read, write = os.pipe()
        command = [sys.executable, "-m", "trainer.cli.count", json.dumps({**request, "blocks": read})]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[read], text=True
        )
        os.close(read)
        self._blocks = os.fdopen(write, "w")

    def count(self, block: Block) -> dict[str, Any]:
        """What the block counts to. Raises JobError("dataset_invalid") if the tokenizer takes no row."""
        print(json.dumps(block), file=self._blocks, flush=True)
        answer = self._process.stdout.readline() if self._process.stdout else ""
        if not answer:
            raise RuntimeError(f"A process that counts tokens ended with {self._process.wait()}.")
        counted = json.loads(answer)
        if "problem" in counted:
            raise JobError("dataset_invalid", counted["problem"])
        return counted

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def count_blocks(request: dict[str, Any], blocks: Iterable[Block], workers: int) -> Iterator[dict[str, Any]]:
    """What each block counts to, in order. Raises JobError("dataset_invalid") if the tokenizer takes no row."""
    # Started by the main thread: the server adds up the memory of its children.
    started = [Worker(request) for _ in range(workers)]
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in started:
        idle.put(worker)
    # Rows of many MB take some hundred MB each.
    one_large = Lock()

    def counted(block: Block) -> dict[str, Any]:
        with one_large if block.large else nullcontext():
            worker = idle.get()
            try:
                return worker.count(block)
            finally:
                idle.put(worker)

    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(counted, blocks)
        finally:
            for worker in started:
                worker.close()


def blocks_from(descriptor: int) -> Iterator[Block]:
    """In a worker: the blocks that it is given."""
    with os.fdopen(descriptor) as lines:
        for line in lines:
            yield Block(*json.loads(line))
