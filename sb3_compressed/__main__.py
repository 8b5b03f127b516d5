"""``python -m sb3_compressed`` runs the command line."""

from sb3_compressed.cli import main

if __name__ == "__main__":
    main()
