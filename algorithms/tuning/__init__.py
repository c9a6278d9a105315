"""Search settings: studies of trials with several seeds, and populations whose members take over from one another."""
