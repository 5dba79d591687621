"""A task of Harbor in a sandbox of Warren: its own solution solves it (the agent `oracle`), its tests judge.

warren serve --registry-dir registry &      registry/environments/workshop.yaml: see docs/integrations/harbor.md
python examples/adapters/harbor_task.py
"""

import asyncio
import tempfile
from pathlib import Path

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

TASK = {
    "instruction.md": "Write the sum of the numbers in /data/numbers.txt to /data/sum.txt.\n",
    "task.toml": 'schema_version = "1.4"\n[environment]\ndocker_image = "base"\nworkdir = "/data"\n',
    "environment/numbers.txt": "3\n5\n8\n",
    "solution/solve.sh": "#!/bin/bash\npaste -sd+ numbers.txt | sed 's/.*/echo $((&))/' | sh > sum.txt\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /data/sum.txt)" = 16 ] && reward=1 || reward=0\n'
    "echo $reward > /logs/verifier/reward.txt\n",
}


async def main(folder: Path) -> None:
    for name, text in TASK.items():
        (folder / "add-up" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "add-up" / name).write_text(text)
    environment = EnvironmentConfig(
        import_path="warren.integrations.harbor:WarrenEnvironment", kwargs={"environment": "workshop"}
    )
    config = TrialConfig(
        task=TaskConfig(path=folder / "add-up"),
        trials_dir=folder / "trials",
        agent=AgentConfig(name="oracle"),
        environment=environment,
    )
    result = await (await Trial.create(config)).run()
    assert result.verifier_result is not None, result.exception_info
    print(result.task_name, result.verifier_result.rewards)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
