"""``python -m depthscale``."""

from depthscale.cli.main import main

if __name__ == "__main__":
    main()
