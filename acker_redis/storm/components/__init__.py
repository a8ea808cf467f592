"""Base classes of spouts and bolts, with streamparse's names."""
