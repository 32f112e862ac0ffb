"""``python -m encoderlab``, as ``torchrun -m encoderlab pretrain ...`` needs it."""

import sys

from encoderlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
