"""``python -m retexo_fl`` is the command line ``retexo``."""

from retexo_fl.cli import main

if __name__ == "__main__":
    main()
