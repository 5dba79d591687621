"""Warren for agent frameworks: thin layers over the client, each installed as an extra."""
