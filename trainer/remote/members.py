"""A training over several machines of a Ray cluster: reserves all of them at once, then starts torchrun on each."""

import json
import os
import socket
from typing import Any

from trainer.remote.run import Member, Settings, follow, run


def run_over_machines(settings: Settings) -> int:
    """Returns the exit status of the first machine's run, which reports to the service. The others end with it."""
    import ray  # pyright: ignore[reportMissingModuleSource]
    from ray.util.placement_group import (  # pyright: ignore[reportMissingModuleSource]
        placement_group,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingModuleSource]
        PlacementGroupSchedulingStrategy,
    )

    ray.init(log_to_driver=True)
    share = json.loads(os.environ["TUNERY_RUN_RESOURCES"])
    # All or nothing: two jobs that each hold a part of the machines would wait for each other.
    group = placement_group([share] * settings.nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    class Machine:
        def place(self) -> tuple[str, int]:
            """An address of this machine and a port that is free there now."""
            with socket.socket() as free:
                free.bind(("", 0))
                return ray.util.get_node_ip_address(), free.getsockname()[1]

        def run(self, settings: Settings, member: Member) -> int | None:
            return run(settings, member) if member.rank == 0 else follow(settings, member)

    def on_bundle(index: int) -> Any:
        custom = {name: amount for name, amount in share.items() if name not in ("CPU", "GPU", "memory")}
        return (
            ray.remote(Machine)
            .options(
                num_cpus=share.get("CPU", 0),
                num_gpus=share.get("GPU", 0),
                memory=share.get("memory"),
                resources=custom,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            )
            .remote()
        )

    machines = [on_bundle(index) for index in range(settings.nodes)]
    address, port = ray.get(machines[0].place.remote())
    runs = [machine.run.remote(settings, Member(rank, address, port)) for rank, machine in enumerate(machines)]
    try:
        return ray.get(runs[0]) or 0
    finally:
        for machine in machines:
            ray.kill(machine)
        remove_placement_group(group)
