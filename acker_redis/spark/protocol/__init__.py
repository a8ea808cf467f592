"""The columns and shares that driver and Python workers agree on."""
