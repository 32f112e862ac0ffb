"""``python -m encoderlab``, needed by ``torchrun -m encoderlab pretrain ...``."""

import sys

from encoderlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
