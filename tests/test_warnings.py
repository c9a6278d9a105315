"""Warnings of the packages say that they are no errors."""

import os
import subprocess
import sys
from pathlib import Path

import catalog_rl

ROOT = Path(catalog_rl.__file__).resolve().parent


def test_a_warning_says_that_it_is_one_unless_the_program_has_set_up_logging() -> None:
    script = """
import logging, catalog_rl
logger = logging.getLogger("rlmodule.envs.checks")
logger.info("nothing")
logger.warning("env %d: was closed", 3)
handler = logging.StreamHandler()
logging.getLogger("rlmodule").addHandler(handler)
logger.warning("env %d: was closed", 4)
logging.getLogger("rlmodule").removeHandler(handler)
logging.basicConfig(format="mine: %(message)s")
logger.warning("env %d: was closed", 5)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    first, of_package, of_all = done.stderr.splitlines()
    assert first == "Warning, the program goes on: env 3: was closed"
    assert (of_package, of_all) == ("env 4: was closed", "mine: env 5: was closed")


def test_nobody_has_to_read_a_warning() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "import logging, catalog_rl; logging.getLogger('rlmodule').warning('slow'); print('goes on')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=False,
        timeout=300,
    )
    os.close(writer)
    assert done.stdout == "goes on\n"
