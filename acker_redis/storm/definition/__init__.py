"""Definition of a topology: streams, groupings, components and settings, checked before anything runs."""
