"""At the door: who is asking (keys, tokens), what their tenant may have (tenants, quotas)."""
