"""The HTTP/1.1 client that coordinators use to reach workers, with pooled connections."""
