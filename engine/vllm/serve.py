"""Runs vLLM's server as a child of the engine: python serve.py serve MODEL [options].

It and all processes that it starts end when the pipe on its stdin ends, so an engine that is killed leaves none behind.
"""

import os
import signal
import threading


def _end_with_parent() -> None:
    # os.read gives up the lock of the interpreter while it waits.
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


# Processes that vLLM starts import this file again.
if __name__ == "__main__":
    # A process group, not a session: where the kernel schedules by session, priorities count only within one.
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    from vllm.entrypoints.cli.main import main

    main()
