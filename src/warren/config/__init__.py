"""Settings, options and the registry: everything an operator can configure."""
