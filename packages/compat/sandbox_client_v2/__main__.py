"""`python -m sandbox_client_v2 --test`: the same as `warren self-test`, and takes its options."""

import sys

from warren.cli.main import main

if __name__ == "__main__":
    sys.argv[1:] = ["self-test", *(word for word in sys.argv[1:] if word != "--test")]
    main()
