"""The worker's side of the agent: the connection, the protocol, commands and files over it."""
