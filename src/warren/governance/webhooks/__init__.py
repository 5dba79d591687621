"""Webhooks: deliveries of events to the addresses that tenants registered."""
