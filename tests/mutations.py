"""Random damage to files, from a seeded `random.Random`: what a disk, a transfer or a hand may do to them."""

import copy
import io
import json
import struct
import warnings
import zipfile

NUMBERS = [
    -1, 0, 1, 2, 3, 4, 7, 8, 48, 100, 2**31, 2**32, 2**53 + 1, 2**62, 2**63, 2**64 - 1, 2**64, 10**30, 0.5, 1e300,
]  # fmt: skip
THINGS = [
    *NUMBERS, None, True, False, "", "F32", "x", "\0", "\ud7ff", "\ud800", [], [0], [1, 2], {}, {"a": 1}, [[]],
    float("nan"),
]  # fmt: skip


def flip(draw, content):
    """Bits, most of them near the beginning, where headers are."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(len(content)) if draw.random() < 0.3 else draw.randrange(min(len(content), 400))
        content = content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    return content


def flip_at_end(draw, content):
    """Bits of the last bytes, where a zip file has its table."""
    place = max(0, len(content) - 1 - draw.randrange(400))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def truncate(draw, content):
    return content[: draw.randrange(len(content))]


def insert(draw, content):
    place = draw.randrange(len(content))
    return content[:place] + draw.randbytes(draw.choice([1, 2, 8, 100])) + content[place:]


def delete(draw, content):
    place = draw.randrange(len(content))
    return content[:place] + content[place + draw.choice([1, 2, 8, 100]) :]


def exchange(draw, content):
    """Two stretches of bytes with each other."""
    size = draw.choice([1, 2, 8])
    first, second = sorted(draw.sample(range(max(2, len(content) - size)), 2))
    if first + size > second:
        return delete(draw, content)
    middle, one, other = content[first + size : second], content[first : first + size], content[second : second + size]
    return content[:first] + other + middle + one + content[second + size :]


def lengthen(draw, content):
    """Another length of the header of a `.safetensors` file."""
    own = len(content)
    length = draw.choice([0, 1, 8, own - 8, own, 10**8, 10**8 + 1, 2**63, 2**64 - 1, draw.randrange(600)])
    return struct.pack("<Q", length) + content[8:]


def numbers_of_header(draw, content):
    """Four bytes anywhere become a number that is likely to be taken for a length."""
    place = draw.randrange(len(content))
    number = draw.choice([0, 1, 2**16, 2**31 - 1, 2**32 - 1, len(content)])
    return content[:place] + struct.pack("<I", number) + content[place + 4 :]


BYTES = [flip, flip, flip_at_end, truncate, insert, delete, exchange, numbers_of_header]


def places(value):
    """Each container of JSON with each of its keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places(value[key])


def edit_json(draw, value):
    """Sound JSON in which values are replaced, taken away, renamed or put in twice."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 2, 3])):
        found = list(places(value))
        if not found:
            return draw.choice(THINGS)
        first = found[:60] if draw.random() < 0.5 else found  # what comes first is seldom a vocabulary
        inner, key = draw.choice(first)
        kind = draw.randrange(6)
        if kind == 0:
            del inner[key]
        elif kind == 1 and isinstance(inner, dict):
            inner[draw.choice(["", "new", key[1:], key.upper(), key + "s", "\0", "é" * 9])] = inner.pop(key)
        elif kind == 2:
            others = list(inner) if isinstance(inner, dict) else range(len(inner))
            inner[key] = copy.deepcopy(inner[draw.choice(others)])
        elif kind == 3 and isinstance(inner[key], int) and not isinstance(inner[key], bool):
            inner[key] += draw.choice([-1, 1, inner[key]])
        elif kind == 4 and isinstance(inner[key], bool):
            inner[key] = not inner[key]
        else:
            inner[key] = copy.deepcopy(draw.choice(THINGS))  # some are lists, which a later edit changes
    return value


def edit_text(draw, content):
    """As `edit_json`, for the bytes of a file; some have a key twice."""
    value = json.loads(content)
    if draw.random() < 0.05:
        return b'{"model": null, ' + json.dumps(value).encode()[1:]
    return json.dumps(edit_json(draw, value), ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def edit_zip(draw, content, edit=None):
    """A valid zip file with members removed, doubled, renamed, cut, emptied or compressed; `edit` changes one."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place, kind, how = draw.randrange(len(members)), draw.randrange(7), zipfile.ZIP_STORED
    name, data = members[place]
    if kind == 0:
        del members[place]
    elif kind == 1:
        members.append((name, draw.choice(members)[1]))
    elif kind == 2:
        members[place] = (draw.choice(["new", name + "x", "../" + name, draw.choice(members)[0]]), data)
    elif kind == 3:
        how = zipfile.ZIP_DEFLATED
    elif edit is not None and kind > 4:
        members[place] = (name, edit(draw, name, data))
    else:
        members[place] = (name, draw.choice(BYTES)(draw, data) if data else b"x")
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", how) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()
