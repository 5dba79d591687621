"""Warren: an isolated Linux computer for every conversation of an AI agent.

    with SandboxClient(thread_id="conv-42") as sandbox:
        print(sandbox.execute("python3 -c 'print(6 * 7)'").output)

Importing this package loads nothing else; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warren.model.errors import WarrenError
    from warren.model.network import NetworkRules
    from warren.model.version import __version__ as __version__
    from warren.sdk.aio.batch import AsyncBatchSandboxClient
    from warren.sdk.aio.client import AsyncSandboxClient
    from warren.sdk.aio.process import AsyncProcess, AsyncTerminal
    from warren.sdk.blocking.batch import BatchSandboxClient
    from warren.sdk.blocking.client import SandboxClient
    from warren.sdk.blocking.process import Process, Terminal
    from warren.sdk.code_results import CodeContext, Execution, ExecutionError, Logs, OutputMessage, Result
    from warren.sdk.results import (
        ArtifactInfo,
        EntryInfo,
        EnvironmentInfo,
        ExecuteResult,
        FiguresInfo,
        FileChange,
        FileEntry,
        FileMatch,
        ImageInfo,
        LogEntry,
        MetricsInfo,
        NetworkInfo,
        OutputChunk,
        PortInfo,
        ProcessInfo,
        SavedArtifacts,
        SearchSummary,
        SessionInfo,
        SnapshotInfo,
        Ticket,
        VolumeInfo,
    )

_MODULES = {
    "warren.model.errors": ("WarrenError",),
    "warren.model.network": ("NetworkRules",),
    "warren.model.version": ("__version__",),
    "warren.sdk.aio.batch": ("AsyncBatchSandboxClient",),
    "warren.sdk.aio.client": ("AsyncSandboxClient",),
    "warren.sdk.aio.process": ("AsyncProcess", "AsyncTerminal"),
    "warren.sdk.blocking.batch": ("BatchSandboxClient",),
    "warren.sdk.blocking.client": ("SandboxClient",),
    "warren.sdk.blocking.process": ("Process", "Terminal"),
    "warren.sdk.code_results": ("CodeContext", "Execution", "ExecutionError", "Logs", "OutputMessage", "Result"),
    "warren.sdk.results": (
        "ArtifactInfo",
        "EntryInfo",
        "EnvironmentInfo",
        "ExecuteResult",
        "FileChange",
        "FileEntry",
        "FiguresInfo",
        "FileMatch",
        "ImageInfo",
        "LogEntry",
        "MetricsInfo",
        "NetworkInfo",
        "OutputChunk",
        "PortInfo",
        "ProcessInfo",
        "SavedArtifacts",
        "SearchSummary",
        "SessionInfo",
        "SnapshotInfo",
        "Ticket",
        "VolumeInfo",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ArtifactInfo",
    "AsyncBatchSandboxClient",
    "AsyncProcess",
    "AsyncSandboxClient",
    "AsyncTerminal",
    "BatchSandboxClient",
    "CodeContext",
    "EntryInfo",
    "EnvironmentInfo",
    "ExecuteResult",
    "Execution",
    "ExecutionError",
    "FiguresInfo",
    "FileChange",
    "FileEntry",
    "FileMatch",
    "ImageInfo",
    "LogEntry",
    "Logs",
    "MetricsInfo",
    "NetworkInfo",
    "NetworkRules",
    "OutputChunk",
    "OutputMessage",
    "PortInfo",
    "Process",
    "ProcessInfo",
    "Result",
    "SandboxClient",
    "SavedArtifacts",
    "SearchSummary",
    "SessionInfo",
    "SnapshotInfo",
    "Terminal",
    "Ticket",
    "VolumeInfo",
    "WarrenError",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'warren' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
