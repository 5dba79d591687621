"""Measures the service over HTTP, beside docker exec, llm-sandbox, swe-rex and the bare runtime, in one run.

    sudo .venv/bin/python bench/service.py               everything, some minutes
    sudo .venv/bin/python bench/service.py exec rate     only these parts, of: create exec first rate files many idle
                                                         admission tenants
    sudo .venv/bin/python bench/service.py --quick       small counts, to see whether it works

Each part starts servers of its own, on fresh state, and removes them. The client is this process: an asyncio protocol
on raw sockets (service_client.py), which costs less than any client library, and curl for large files. It shares the
cores with the server. Absolute times depend on the machine; compare the ratios. Each row ends with its target and
whether this run met it; a missed target is not an error.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import service_bulk
import service_speed
import service_tenants
import uvloop
from sandboxes import Table


@dataclass
class Options:
    quick: bool = False

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


Part = Callable[[Table, Callable[[int, int], int]], Awaitable[None]]

PARTS: dict[str, Part] = {
    "create": service_speed.create_part,
    "exec": service_speed.exec_part,
    "first": service_speed.first_part,
    "rate": service_speed.rate_part,
    "files": service_bulk.files_part,
    "many": service_bulk.many_part,
    "idle": service_bulk.idle_part,
    "admission": service_tenants.admission_part,
    "tenants": service_tenants.tenants_part,
}


async def main(words: list[str]) -> int:
    options = Options(quick="--quick" in words)
    parts = [word for word in words if word != "--quick"]
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"there is no part {', '.join(unknown)}; there are: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}; client: asyncio on raw sockets")
    table, failed = Table(), []
    for name, part in PARTS.items():
        if not parts or name in parts:
            print(f"\n{name}", flush=True)
            try:
                await part(table, options.count)
            except Exception:
                traceback.print_exc()
                failed.append(name)
    print(f"\n{table.missed} targets missed" + (f"; parts that failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(sys.argv[1:])))
