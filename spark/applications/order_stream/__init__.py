"""Endless stream of orders, with poison orders and killed workers, in which every order is accounted for."""
