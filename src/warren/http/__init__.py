"""The HTTP API: admission, routes, schemas and the OpenAPI document."""
