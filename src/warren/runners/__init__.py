"""The runners of code contexts: programs that lie in every sandbox, a directory for each language."""
