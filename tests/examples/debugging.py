#!/usr/bin/env python3
"""debugging.py PROGRAM README [--update]: the runs that README shows are what PROGRAM prints.

A block that begins with "$ debugging ARGS", or "$ gdb ... --args debugging ARGS" where there is a gdb, is run and compared, numbers
with a point or an exponent and addresses aside: their last digits depend on the processor. --update writes what the program prints
into README.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys

program, readme = sys.argv[1:3]
text = open(readme).read()
failed = False


def masked(lines):
    return re.sub(r"-?\d+\.\d+(e[+-]?\d+)?|-?\d+e[+-]\d+|0x\w+|#[#\d]*", "N", re.sub(r" +", " ", lines))


def printed_by(command):
    words = shlex.split(command)
    if words[0] == "gdb":
        if not shutil.which("gdb"):
            return None
        trusted = os.path.dirname(os.path.abspath(__file__ + "/../.."))
        words[1:1] = ["-nx", "-iex", f"add-auto-load-safe-path {trusted}", "-iex", "set debuginfod enabled off"]
        result = subprocess.run([program if word == "debugging" else word for word in words], capture_output=True, text=True)
        # What gdb says of itself, and the names that the build gave files.
        lines = [line for line in result.stdout.splitlines(True) if not re.match(r"\[(Thread|New|Inferior|Switching)|Using host|warning:|BFD:|$", line.strip())]
        return re.sub(r"at \S*/", "at ", "".join(lines))
    result = subprocess.run([program] + words[1:], capture_output=True, text=True)
    return result.stdout + result.stderr


def run(match):
    global failed
    command, shown = match.group(1), match.group(2)
    printed = printed_by(command)
    if printed is None:
        return match.group(0)
    if masked(printed) != masked(shown):
        failed = True
        print(f"{command} prints\n{printed}\nand README has\n{shown}")
    return f"```\n$ {command}\n{printed}```"


updated = re.sub(r"```\n\$ ((?:debugging|gdb) [^\n]*)\n(.*?)```", run, text, flags=re.S)
if "--update" in sys.argv:
    open(readme, "w").write(updated)
    failed = False
sys.exit(failed)
