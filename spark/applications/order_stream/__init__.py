"""A stream of orders that runs as long as one likes, with poison in it and workers killed: every order accounted for."""
