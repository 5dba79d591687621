"""What is written down about a sandbox of the docker provider: a record, and the engine's id of its container."""

from dataclasses import dataclass, replace

from warren.worker.providers.record import Record


@dataclass(frozen=True, slots=True)
class DockerRecord(Record):
    container: str = ""

    def created(self, container: str) -> "DockerRecord":
        return replace(self, container=container)
