"""A program that misuses the clients. Type checkers must find each line marked as wrong, and no other."""

from warren import AsyncSandboxClient, BatchSandboxClient, SandboxClient


def blocking(sandbox: SandboxClient) -> None:
    SandboxClient(timeout="30")  # wrong
    SandboxClient(tiemout=30)  # wrong
    SandboxClient(mode="cloud")  # wrong
    SandboxClient("http://localhost:8000", "t", "local")  # wrong
    SandboxClient(limits=["memory_mb"])  # wrong
    SandboxClient.attach("s-1", image="base")  # wrong
    SandboxClient.list_sessions(modus="local")  # wrong
    SandboxClient.delete_thread("t", api_key=5)  # wrong
    BatchSandboxClient(parallel=3)  # wrong
    BatchSandboxClient().execute_batch(["a"], timeout="3")  # wrong
    sandbox.execute(3)  # wrong
    sandbox.stream("make", cwdd="/tmp")  # wrong
    sandbox.spawn("make", env={"A": 1})  # wrong
    sandbox.change(metadata={"user": 7})  # wrong
    sandbox.change(idle_timeout="60")  # wrong
    sandbox.write_file("a", 3)  # wrong
    sandbox.run_code("1", on_stdout=3)  # wrong
    print(sandbox.run_code("1").output)  # wrong
    print(sandbox.execute("true").exitcode)  # wrong
    print(sandbox.execute("true").exit_code + "0")  # wrong


async def asynchronous(sandbox: AsyncSandboxClient) -> None:
    print(sandbox.execute("true").output)  # wrong
    await sandbox.spawn("make", timeout="3")  # wrong
    for chunk in sandbox.stream("make"):  # wrong
        print(chunk)
