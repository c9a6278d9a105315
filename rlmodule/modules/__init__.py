"""Neural modules, which compute what a policy outputs, the specs that build them, and the policies that act with
them."""
