"""Runs one attempt at a job on a machine of a cluster: `python -m trainer.cli.remote`, with the variables TUNERY_RUN_*
that the service sets (trainer/remote/run.py).

The trainer itself is a child of this program and knows nothing of it: the same lines on a pipe, SIGTERM to stop, the
end of its stdin when this program is gone. This program needs no package, so it may run in another Python.
"""

import sys

from trainer.remote.run import Settings, run

if __name__ == "__main__":
    settings = Settings.from_environment()
    if settings.nodes > 1:
        from trainer.remote.members import run_over_machines

        sys.exit(run_over_machines(settings))
    sys.exit(run(settings))
