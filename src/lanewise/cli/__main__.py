"""`python -m lanewise.cli`, where the script `lanewise` is not on the path."""

from lanewise.cli import main

main()
