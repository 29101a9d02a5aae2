"""A user at a shell: `TAUT PROGRAM` runs under `taut exec --report`; ^Z, fg, and ^C. Prints what the shell and the
program showed, in words that the test knows."""

import os
import pty
import re
import select
import sys
import time

SECONDS = 30


class Shell:
    def __init__(self):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ["PS1"] = "ready> "
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.shown = ""

    def type(self, text):
        self.shown = ""
        os.write(self.terminal, text.encode())

    def wait(self, pattern):
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.shown):
            if time.monotonic() > end:
                sys.exit(f"waited in vain for {pattern}: {self.shown}")
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.shown += os.read(self.terminal, 4096).decode(errors="replace")
        return self.shown


shell = Shell()
shell.wait("ready> ")
shell.type(f"{sys.argv[1]} exec --report -- python3 {sys.argv[2]}\n")
shell.wait("began")
shell.type("\x1a")
shell.wait("Stopped[^(]*\n.*ready> ")
shell.type("jobs -l\n")
print("stopped jobs:", len(re.findall("Stopped", shell.wait("Stopped.*\n.*ready> "))))
shell.type("fg\n")
shell.wait("goes on")
shell.type("\x03")
shell.wait("interrupt 1")
time.sleep(0.5)
shell.type("\x03")
print("interrupts:", shell.wait("interrupt 2(.|\n)*ready> ").count("interrupt "))
print("reported:", "sleeps: late by" in shell.shown)
shell.type("echo status $?.\n")
print(re.search("status [0-9]+", shell.wait("status [0-9]+")).group())
