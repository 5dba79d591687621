"""The version of Warren: of the package, the server and the clients."""

__version__ = "0.1.0"
