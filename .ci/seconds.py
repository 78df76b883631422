"""The seconds of each job of `.ci/run` and of its dearest tests: `python .ci/seconds.py REPORTS drawn`.

REPORTS holds JUnit files of pytest and the file `seconds`, with a line "name seconds" for each job. Exits with 1 if the
jobs of a drawn run took longer than LIMIT together: tests must then become cheaper, or be drawn more rarely.
"""

import pathlib
import sys
import xml.etree.ElementTree

LIMIT = 2700  # seconds
DEAREST = 10


def tests(report):
    """(seconds, name) of each test of a JUnit file, the dearest first. A broken job has none, or half of one."""
    try:
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
    except (FileNotFoundError, xml.etree.ElementTree.ParseError):
        return []
    found = ((float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name', '')[:80]}") for case in cases)
    return sorted(found, reverse=True)


def main():
    folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
    jobs = {name: int(seconds) for name, seconds in map(str.split, (folder / "seconds").read_text().splitlines())}
    of_jobs = {name: tests(folder / f"{name}.xml") for name in jobs}
    for name, found in of_jobs.items():
        if found:
            print(f"The dearest tests of {name}:")
            print("".join(f"{seconds:8.1f} s  {test}\n" for seconds, test in found[:DEAREST]), end="")
    print(f"\n{'job':16}{'seconds':>8}{'tests':>8}")
    for name, seconds in jobs.items():
        print(f"{name:16}{seconds:8}{len(of_jobs[name]) or '':>8}")
    total = sum(jobs.values())
    print(f"{'sum':16}{total:8}{sum(map(len, of_jobs.values())):8}")
    if mode == "drawn" and total > LIMIT:
        dearest = sorted((one for found in of_jobs.values() for one in found), reverse=True)[:DEAREST]
        sys.exit(f"{total} s are more than {LIMIT} s. The dearest tests are " + ", ".join(name for _, name in dearest))


if __name__ == "__main__":
    main()
