"""Runs something long in a bash session, to be interrupted."""

import asyncio

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

from warren.integrations.swe_rex import WarrenDeployment


async def main() -> None:
    deployment = WarrenDeployment()
    try:
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
        await deployment.runtime.run_in_session(BashAction(command="sleep 600"))
    finally:
        await deployment.stop()


asyncio.run(main())
