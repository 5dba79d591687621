"""Named volumes of tenants: what is known about them, and which sessions have them mounted."""
