#!/usr/bin/env python3
"""debugging.py PROGRAM README [--update]: the runs that README shows are what PROGRAM prints.

A block that begins with "$ debugging ARGS" is run and compared, numbers with a point or an exponent aside: their last digits depend
on the processor. --update writes what the program prints into README.
"""
import re
import subprocess
import sys

program, readme = sys.argv[1:3]
text = open(readme).read()
failed = False


def masked(lines):
    return re.sub(r"-?\d+\.\d+(e[+-]?\d+)?|-?\d+e[+-]\d+|#+", "N", re.sub(r" +", " ", lines))


def run(match):
    global failed
    arguments, shown = match.group(1), match.group(2)
    result = subprocess.run([program] + arguments.split(), capture_output=True, text=True)
    printed = result.stdout + result.stderr
    if masked(printed) != masked(shown):
        failed = True
        print(f"debugging {arguments} prints\n{printed}\nand README has\n{shown}")
    return f"```\n$ debugging {arguments}\n{printed}```"


updated = re.sub(r"```\n\$ debugging ([^\n]*)\n(.*?)```", run, text, flags=re.S)
if "--update" in sys.argv:
    open(readme, "w").write(updated)
    failed = False
sys.exit(failed)
