"""Vector environments: making, checking and restarting them."""
