"""The coordinator's reverse proxy: finds the worker of a request's session and passes the request on."""
