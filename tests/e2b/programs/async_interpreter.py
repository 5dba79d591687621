"""The asynchronous half of the code interpreter's SDK."""

import asyncio

from checks import done, refused
from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox


async def main() -> None:
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        assert (await sandbox.run_code("x = 6; x * 7")).text == "42"
        lines = []

        async def on_stdout(message) -> None:
            lines.append(message.line)

        await sandbox.run_code("for i in range(3): print(i)", on_stdout=on_stdout)
        assert "".join(lines) == "0\n1\n2\n"
        failed = await sandbox.run_code("raise KeyError('k')", on_error=lines.append)
        assert failed.error.name == lines[-1].name == "KeyError"
        contexts = [await sandbox.create_code_context(cwd="/tmp") for _ in range(2)]
        code = "import time; time.sleep(1); 'slept'"
        slept = await asyncio.gather(*(sandbox.run_code(code, context=context) for context in contexts))
        assert [execution.text for execution in slept] == ["slept", "slept"]
        assert {context.id for context in contexts} <= {context.id for context in await sandbox.list_code_contexts()}
        await sandbox.restart_code_context(contexts[0])
        await sandbox.remove_code_context(contexts[1])
        with refused(TimeoutException):
            await sandbox.run_code("import time; time.sleep(60)", timeout=2)
        task = asyncio.create_task(sandbox.run_code("import time\nwhile True: time.sleep(0.1)", timeout=0))
        await asyncio.sleep(1)
        task.cancel()  # the client goes away: the code is interrupted
        async with asyncio.timeout(60):
            while (await sandbox.run_code("x")).text != "6":
                await asyncio.sleep(0.2)


asyncio.run(main())
done()
