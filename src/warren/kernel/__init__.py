"""What all parts build on and what knows nothing of sandboxes: time, logs, traces, pacing, bounded memory."""
