"""Has options that a recorder has too, and says what came in; needs no torch."""

import argparse
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--force", action="store_true")
parser.add_argument("-o", "--output")
parser.add_argument("rest", nargs="*")
print(sys.argv[1:], parser.parse_args(), __name__, sys.stdin.read())
sys.exit(5)
