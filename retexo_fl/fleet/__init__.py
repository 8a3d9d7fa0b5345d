"""One file that describes a federation, and what each of its machines gets."""
