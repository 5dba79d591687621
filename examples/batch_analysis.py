"""Batch data analysis: one agent and one sandbox for each file, all at the same time.

warren serve &
python examples/batch_analysis.py
"""

import asyncio
import json
import uuid
from typing import Any

from example_run import run_example
from langchain.agents import create_agent
from model_choice import choose_model

from warren import AsyncSandboxClient
from warren.integrations.langgraph_tools import sandbox_tools
from warren.integrations.prompt import SANDBOX_PROMPT

SALES = {
    "north": "month,amount\n1,100\n2,140\n3,90\n",
    "south": "month,amount\n1,20\n2,35\n3,65\n",
    "west": "month,amount\n1,7\n2,7\n3,7\n",
}
QUESTION = 'sales.csv has the sales of a region. Write result.json: {"total": ..., "best_month": ...}.'
PROGRAM = """\
import csv, json
rows = [(int(row["month"]), int(row["amount"])) for row in csv.DictReader(open("sales.csv"))]
best = max(rows, key=lambda row: row[1])[0]
json.dump({"total": sum(amount for _, amount in rows), "best_month": best}, open("result.json", "w"))
"""
SCRIPT = (
    [("write_file", {"path": "analyse.py", "content": PROGRAM})],
    [("bash", {"command": "python3 analyse.py && cat result.json"})],
    "result.json is written.",
)


async def analyse(region: str, table: str) -> dict[str, Any]:
    async with AsyncSandboxClient(thread_id=f"example-{region}-{uuid.uuid4().hex}") as sandbox:
        await sandbox.write_file("sales.csv", table)
        agent = create_agent(choose_model(*SCRIPT), sandbox_tools(), system_prompt=SANDBOX_PROMPT)
        await agent.ainvoke({"messages": [("user", QUESTION)]}, {"configurable": {"thread_id": sandbox.thread_id}})
        result: dict[str, Any] = json.loads(await sandbox.read_file("result.json"))
        await sandbox.cleanup()
        return result


async def main() -> None:
    results = await asyncio.gather(*(analyse(region, table) for region, table in SALES.items()))
    for region, result in zip(SALES, results, strict=True):
        print(f"{region}: {result['total']} in all, most in month {result['best_month']}")


if __name__ == "__main__":
    run_example(lambda: asyncio.run(main()))
