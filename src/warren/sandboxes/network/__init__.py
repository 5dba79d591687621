"""The network of sandboxes, from the worker's side: sockets made inside their network namespaces."""
