"""Workers in other processes: Ray actors and process groups."""
