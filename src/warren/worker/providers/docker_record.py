"""What is written down about a sandbox of the docker provider: a record, and the engine's id of its container."""

from dataclasses import dataclass, replace
from pathlib import Path

from warren.worker.providers import oci_record
from warren.worker.providers.oci_record import Record


@dataclass(frozen=True, slots=True)
class DockerRecord(Record):
    container: str = ""

    def created(self, container: str) -> "DockerRecord":
        return replace(self, container=container)


def abandoned(directory: Path) -> bool:
    """Whether a sandbox's directory is what a maker left that is gone."""
    record = DockerRecord.load(directory)
    return record.abandoned if record is not None else oci_record.abandoned(directory)
