"""The worker's side of the network of sandboxes: what is done inside of their network namespaces."""
