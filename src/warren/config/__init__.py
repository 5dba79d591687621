"""Settings, options and the registry: everything an operator can say, read in one place."""
