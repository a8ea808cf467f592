"""Names, shares and encodings that driver and Python workers agree on."""
