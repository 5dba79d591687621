"""Warren: an isolated Linux computer for every conversation of an AI agent."""

__version__ = "0.1.0"
