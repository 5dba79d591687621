"""What tenants may do and have done: quotas, usage, policies, audit, events, webhooks, secrets, metrics."""
