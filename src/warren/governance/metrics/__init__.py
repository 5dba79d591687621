"""What Prometheus reads at /metrics: how a process is doing, all tenants together.

`PrometheusRecorder` counts what parts of the process report as it happens (interfaces/recorder.py). What a part knows
anyway is read when somebody asks: `Readings` has those values, `ReadingsCollector` gives them their names.
`ProcessMetrics` puts both on one page. Each process has one of its own, and nothing here is global.

No label names a session, a tenant, a domain or a command, and every label has a bound: a page must not grow with what
callers do. docs/monitoring.md lists all names.
"""
