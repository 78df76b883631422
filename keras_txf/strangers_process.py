"""Evaluates untrusted Jinja templates and regular expressions.

`strangers.ask` runs this file as a separate process with limits. The file does not import the package, which would take
seconds.
"""

import datetime
import functools
import json
import re
import sys

MARKS = "\ufdd0", "\ufdd1"  # around an answer; Unicode keeps both for use within a program
LONGEST = 10**7  # characters of a text


def check(source):
    """Compiles a template. Returns whether the template marks answers by `{% generation %}`."""
    import jinja2

    template(source, False)
    found = environment(False).parse(source).find_all(jinja2.nodes.ExtensionAttribute)
    return any(node.name == "wrapped" for node in found)


def render(source, marks, variables):
    """Returns the text of a template. With `marks`, `MARKS` enclose the text of `{% generation %}` blocks."""
    text = template(source, marks).render(variables)
    if len(text) > LONGEST:
        raise OverflowError(f"the text has {len(text)} characters, and the limit is {LONGEST}")
    return text


def full_match(pattern, text):
    return bool(re.fullmatch(pattern, text))


def match(pattern, text):
    """Returns the groups of a match at the beginning of a text; None without a match."""
    found = re.match(pattern, text)
    return found and found.groups()


@functools.lru_cache(maxsize=64)
def template(source, marks):
    return environment(marks).from_string(source)


@functools.cache
def environment(marks):
    """The sandbox for all templates, with the settings of transformers."""
    import jinja2.ext
    import jinja2.sandbox

    first, last = MARKS if marks else ("", "")

    class Generation(jinja2.ext.Extension):
        """The block `{% generation %}`, which renders its content."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("wrapped"), [], [], body).set_lineno(line)

        def wrapped(self, caller):
            return f"{first}{caller()}{last}"

    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return sandbox


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """The filter `tojson`. Jinja's own filter would escape letters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    import jinja2

    raise jinja2.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)


def limit_memory(size):
    """Limits the memory of this process to `size` bytes; not possible on Windows and macOS."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, ValueError, OSError):
        pass


def main():
    """Answers each line of JSON: [name of a function, arguments] -> [result] or [None, class, reason, line]."""
    limit_memory(int(sys.argv[1]))
    functions = {function.__name__: function for function in (check, render, match, full_match)}
    print(json.dumps("ready"), flush=True)
    for request in sys.stdin:
        name, arguments = json.loads(request)
        try:
            answer = [functions[name](*arguments)]
        except Exception as error:  # a template may raise any error
            answer = [None, type(error).__name__, str(error)[:1000], getattr(error, "lineno", None)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
