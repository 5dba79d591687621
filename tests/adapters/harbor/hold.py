"""A trial whose solution takes long, to be interrupted."""

import asyncio
from pathlib import Path

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

TASK = Path.cwd() / "wait"
FILES = {
    "instruction.md": "Wait.\n",
    "task.toml": 'schema_version = "1.4"\n[environment]\ndocker_image = "base"\n',
    "environment/none": "",
    "solution/solve.sh": "#!/bin/bash\nsleep 600\n",
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
}


async def main() -> None:
    for name, text in FILES.items():
        (TASK / name).parent.mkdir(parents=True, exist_ok=True)
        (TASK / name).write_text(text)
    environment = EnvironmentConfig(
        import_path="warren.integrations.harbor:WarrenEnvironment", kwargs={"environment": "workshop"}
    )
    config = TrialConfig(task=TaskConfig(path=TASK), agent=AgentConfig(name="oracle"), environment=environment)
    await (await Trial.create(config)).run()


asyncio.run(main())
