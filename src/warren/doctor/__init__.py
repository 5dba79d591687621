"""`warren doctor`: is this machine fit for sandboxes? Prerequisites and layers of isolation, with the remedies."""
