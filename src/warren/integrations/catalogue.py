"""The frameworks that Warren has adapters for, with the releases that its tests run."""

from dataclasses import dataclass
from importlib import metadata
from typing import Final


@dataclass(frozen=True, slots=True)
class Integration:
    """`extra`: that of warren-sandbox which brings it. `module`: what users import. `oldest`, `newest`: releases."""

    name: str
    extra: str
    distribution: str
    module: str
    oldest: str
    newest: str

    @property
    def page(self) -> str:
        return "integration-guide.md" if self.extra == "langchain" else f"integrations/{self.extra}.md"

    @property
    def installed(self) -> str:
        """The version of the framework that is installed, or nothing."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return ""


def _of(name: str, extra: str, distribution: str, oldest: str, newest: str, module: str = "") -> Integration:
    return Integration(name, extra, distribution, f"warren.integrations.{module or extra}", oldest, newest)


INTEGRATIONS: Final = (
    _of("AG2", "ag2", "ag2", "1.0.0", "1.2.1"),
    _of("agno", "agno", "agno", "3.1.7", "3.1.10"),
    _of("AutoGen", "autogen", "autogen-core", "0.5.0", "0.7.5"),
    _of("Deep Agents Code", "deepagents-code", "deepagents-code", "0.1.68", "0.1.88", "deepagents_code"),
    _of("Google ADK", "google-adk", "google-adk", "2.4.0", "2.13.0", "google_adk"),
    _of("Harbor", "harbor", "harbor", "0.20.0", "0.24.0"),
    _of("Inspect AI", "inspect", "inspect-ai", "0.3.200", "0.3.285", "inspect_ai"),
    _of("LangGraph, Deep Agents", "langchain", "deepagents", "0.6.12", "0.7", "langgraph_tools"),
    _of("mini-swe-agent", "mini-swe-agent", "mini-swe-agent", "2.0.0", "2.4.6", "mini_swe_agent"),
    _of("OpenAI Agents", "openai-agents", "openai-agents", "0.20.0", "0.24.0", "openai_agents"),
    _of("OpenHands", "openhands", "openhands-sdk", "1.40.1", "1.58.0"),
    _of("Pydantic AI", "pydantic-ai", "pydantic-ai-slim", "2.52.0", "2.68.0", "pydantic_ai"),
    _of("smolagents", "smolagents", "smolagents", "1.25.0", "1.26.0"),
    _of("Strands Agents", "strands", "strands-agents", "1.56.0", "1.62.0"),
    _of("SWE-ReX", "swe-rex", "swe-rex", "1.2.0", "1.4.0", "swe_rex"),
)
