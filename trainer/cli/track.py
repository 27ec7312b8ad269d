"""Sends a job's loss curve to the operator's tracker: `track.py KIND TARGET PROJECT RUN OPTIONS < LINES`.

KIND: tensorboard (TARGET is a folder), mlflow (a tracking URI) or wandb (a server's address, or empty for wandb.ai).
PROJECT groups runs. RUN is the job's id; a job that resumes after a crash continues the same run: steps that it trains
again and that the tracker has are not sent again. OPTIONS is a JSON object that may have the `name` and `tags` of a run
in wandb; the other trackers ignore it. Each line is a JSON object: {"params": {…}} once, then
{"step": N, "metrics": {…}}. Runs in its own environment with only that tracker, so it imports nothing else of the
trainer. The trackers' packages are only there.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """A run of a tracker. Its class takes target, project, run and options of the command line."""

    def params(self, values: dict[str, Any]) -> None:
        """Sends the job's settings."""
        ...

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Sends the figures of a step, unless the tracker has them."""
        ...

    def end(self) -> None:
        """Sends what is left, and ends the run."""
        ...


class TensorBoard(Tracker):
    """Files that TensorBoard reads; they have no settings."""

    def __init__(self, target: str, project: str, run: str, _options: dict[str, Any]) -> None:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingModuleSource]

        folder = Path(target) / project / run
        self.last_steps = read_last_steps(folder) if folder.is_dir() else {}
        self.writer = Writer(str(folder))

    def params(self, values: dict[str, Any]) -> None:
        """Sends nothing."""

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Writes a scalar a figure, and flushes: who watches sees it at once."""
        for name, value in without_old(values, step, self.last_steps).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self) -> None:
        """Closes the file."""
        self.writer.close()


def read_last_steps(folder: Path) -> dict[str, int]:
    """The last step of each metric in a folder of TensorBoard."""
    from tensorboard.backend.event_processing import event_accumulator  # pyright: ignore[reportMissingModuleSource]

    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 1})
    events.Reload()
    return {name: events.Tensors(name)[-1].step for name in events.Tags()["tensors"]}


class MlFlow(Tracker):
    """A run of an experiment in MLflow, found again by its tag."""

    def __init__(self, target: str, project: str, run: str, _options: dict[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingModuleSource]

        self.mlflow = mlflow
        mlflow.set_tracking_uri(target)
        experiment = mlflow.set_experiment(project)
        runs = mlflow.search_runs(
            [experiment.experiment_id], f"tags.tunery_job = '{run}'", max_results=1, output_format="list"
        )
        run_id = runs[0].info.run_id if runs else None
        history = mlflow.MlflowClient().get_metric_history
        names: list[str] = list(runs[0].data.metrics) if runs else []
        self.last_steps = {name: max(point.step for point in history(run_id, name)) for name in names}
        mlflow.start_run(run_id=run_id, run_name=run, tags={"tunery_job": run}, log_system_metrics=False)

    def params(self, values: dict[str, Any]) -> None:
        """Logs them as parameters."""
        self.mlflow.log_params(values)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Logs the figures that the run did not have when it was continued."""
        fresh = without_old(values, step, self.last_steps)
        if fresh:
            self.mlflow.log_metrics(fresh, step=step)

    def end(self) -> None:
        """Marks the run as finished."""
        self.mlflow.end_run()


class WeightsAndBiases(Tracker):
    """A run in Weights & Biases."""

    def __init__(self, target: str, project: str, run: str, options: dict[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingModuleSource]

        settings = wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False, silent=True)
        if target:
            settings.base_url = target
        self.run = wandb.init(
            project=project,
            id=run,
            name=options.get("name") or run,
            tags=options.get("tags"),
            resume="allow",
            settings=settings,
        )
        self.last_step = self.run.step - 1 if self.run.resumed else -1

    def params(self, values: dict[str, Any]) -> None:
        """Puts them into the run's configuration, over those of a run that continues."""
        self.run.config.update(values, allow_val_change=True)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Logs the figures of a step after those that the run had when it was continued."""
        if step > self.last_step:
            self.run.log(values, step=step)

    def end(self) -> None:
        """Waits until all is sent."""
        self.run.finish()


def without_old(values: dict[str, float], step: int, last_steps: dict[str, int]) -> dict[str, float]:
    """The values that the tracker did not have of this step or a later one when the run was continued."""
    return {name: value for name, value in values.items() if step > last_steps.get(name, -1)}


KINDS: dict[str, Callable[[str, str, str, dict[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MlFlow,
    "wandb": WeightsAndBiases,
}


def main() -> None:
    """Sends the lines of stdin to the tracker of the command line, to their end."""
    kind, target, project, run, options = sys.argv[1:6]
    tracker = KINDS[kind](target, project, run, json.loads(options))
    for line in sys.stdin:
        entry = json.loads(line)
        if "params" in entry:
            tracker.params(entry["params"])
        else:
            tracker.metrics(entry["step"], entry["metrics"])
    tracker.end()


if __name__ == "__main__":
    main()
