"""All but the long description stands in setup.cfg.

The long description is the README without what leads nowhere on the page of a package index: pictures of this folder
and links to its files. The text of such a link stays.
"""

import pathlib
import re

from setuptools import setup

CODE = r"```.*?```|`[^`\n]*`"
FILE = r"\((?!\w+:|#)[^)\s]+\)"


def for_index(readme):
    found = re.compile(rf"({CODE})|!\[[^\]]*\]{FILE}\n*|\[([^\]]*)\]{FILE}", re.DOTALL)
    return found.sub(lambda match: match[1] or match[2] or "", readme)


setup(
    long_description=for_index(pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
