"""BERT's words: cleans, decomposes, lower-cases and splits text, character by character.

Tables define the words exactly as in Hugging Face's `tokenizers`. Hence the words do not depend on the Unicode version
of Python, TensorFlow or ICU. `tokenizers` has the categories of Unicode 8 and the decompositions of Unicode 12: it
treats later marks as letters. Ranges are hexadecimal, both ends included.

Legend: R texts, C characters, W words.
"""

import functools
import itertools
import unicodedata

import numpy as np

from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import marked

# New characters have flags above their 21 bits, in this order.
CHARACTER = (1 << 21) - 1
MORE = 1 << 21  # more new characters follow
MOVES = 1 << 22  # a kept accent, which is sorted among the accents
SPACE = 1 << 23  # ends a word
ALONE = 1 << 24  # is a word
STARTER = 1 << 25  # a dropped accent, which ends a run of sorted accents
DROPPED = 1 << 26
PAGE = 256


def words(texts, lowercase, strip_accents, split_chinese, clean):
    """Splits texts into words, as `BertNormalizer` and `BertPreTokenizer` of Hugging Face do.

    Args:
        texts: string (R,).
        lowercase, strip_accents, split_chinese, clean: bools, the normaliser's options.

    Returns:
        words: string (W,).
        lengths: int64 (W,), their characters.
        splits: int64 (R + 1,), the words of each text.
    """
    table = tables(lowercase, strip_accents, split_chinese, clean)
    characters = changed(tf.strings.unicode_decode(texts, "UTF-8"), *table)
    if strip_accents:
        moves = tf.reduce_any(tf.bitwise.bitwise_and(characters.values, MOVES) > 0)
        characters = tf.cond(moves, lambda: in_canonical_order(characters), lambda: characters)
    return split(drop_flagged(characters, STARTER))


def changed(codes, first, rest, page_of):
    """Normalises code points, RaggedTensor (R, C), and adds flags. The number of characters may change."""
    code = codes.values
    page = tf.gather(page_of, tf.bitwise.right_shift(code, 8))
    index = page * PAGE + tf.bitwise.bitwise_and(code, PAGE - 1)
    values = tf.bitwise.bitwise_xor(tf.gather(first, index), code)

    def several():
        wide = tf.reshape(tf.concat([values[:, None], tf.gather(rest, index)], axis=1), [-1])
        splits = codes.row_splits * (1 + rest.shape[1])
        return tf.RaggedTensor.from_row_splits(wide, splits, validate=False)

    more = tf.reduce_any(tf.bitwise.bitwise_and(values, MORE) > 0)
    return drop_flagged(tf.cond(more, several, lambda: codes.with_values(values)), DROPPED)


def drop_flagged(ragged, flag):
    """Returns the values below the flag. Usually all values are below it, which costs nothing."""
    kept = ragged.values < flag

    def some():
        before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], 0)
        splits = tf.gather(before, ragged.row_splits)
        return tf.RaggedTensor.from_row_splits(tf.boolean_mask(ragged.values, kept), splits, validate=False)

    return tf.cond(tf.reduce_all(kept), lambda: ragged, some)


def in_canonical_order(characters):
    """Sorts the accents between two letters by their classes: RaggedTensor (R, C) -> RaggedTensor (R, C)."""
    values = characters.values
    codes, classes = accents()
    moves = tf.bitwise.bitwise_and(values, MOVES) > 0
    index = tf.where(moves, tf.searchsorted(codes, tf.bitwise.bitwise_and(values, CHARACTER)), 0)
    letter = tf.cumsum(tf.cast(~moves, tf.int64)) + characters.value_rowids()
    key = letter * 256 + tf.where(moves, tf.gather(classes, index), 0)
    return characters.with_values(tf.gather(values, tf.argsort(key, stable=True)))


@functools.cache
def accents():
    """Returns the kept accents, int32, sorted, and their canonical combining classes, int64."""
    codes = sorted(code_points(REORDERED))
    return np.array(codes, "int32"), np.array([unicodedata.combining(chr(code)) for code in codes], "int64")


def split(characters):
    """Splits characters with flags, RaggedTensor (R, C), into words; see `words`."""
    values, splits = characters.values, characters.row_splits
    ends, alone = values >= SPACE, values >= ALONE
    after_end = tf.concat([[True], ends], 0)[:-1]
    space = ends & ~alone
    begins = (alone | after_end | marked(splits, values)) & ~space
    letters = tf.boolean_mask(tf.bitwise.bitwise_and(values, CHARACTER), ~space)
    starts = tf.where(tf.boolean_mask(begins, ~space))[:, 0]
    limits = tf.concat([starts, [tf.size(letters, tf.int64)]], 0)
    words = tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(letters, limits, validate=False), "UTF-8")
    before = tf.searchsorted(tf.where(begins)[:, 0], splits, out_type=tf.int64)
    return words, limits[1:] - limits[:-1], before


@functools.cache
def tables(lowercase, strip_accents, split_chinese, clean):
    """Makes the tables of the new characters of each code point; equal pages of 256 code points are stored once.

    Returns:
        first: int32 (cells,), XOR of the code point and its first new character: 0 for no change.
        rest: int32 (cells, 0 to 2), its further new characters.
        page_of: int32 (4352,), the page of every 256 code points.
    """
    names = (WHITESPACE, PUNCTUATION, CHINESE, MARKS, CONTROL, REORDERED)
    whitespace, punctuation, chinese, marks, control, reordered = (frozenset(code_points(name)) for name in names)

    def parts(character):
        """Yields the new characters of a character."""
        for part in decompose(character) if strip_accents else character:
            if not strip_accents or ord(part) not in marks:
                yield from map(ord, lower(part) if lowercase else part)
            elif not unicodedata.combining(part):
                yield STARTER

    def flag(code):
        moves = MOVES if strip_accents and code in reordered else 0
        return moves | (SPACE if code in whitespace else ALONE if code in punctuation else 0)

    width = 3 if strip_accents else 2 if lowercase else 1
    cells = np.full((0x110000, width), DROPPED, "int32")
    cells[:, 0] = 0
    for code in {*whitespace, *punctuation, *marks, *reordered, *letters()}:
        new = [part | flag(part) for part in parts(chr(code))] or [DROPPED]
        new[0] ^= (code if new[0] < STARTER else 0) | (MORE if len(new) > 1 else 0)
        cells[code, : len(new)] = new
    if split_chinese:
        cells[list(chinese), 0] |= ALONE
    if clean:
        cells[list(control)] = DROPPED
    pages = {}
    page_of = [pages.setdefault(page.tobytes(), len(pages)) for page in cells.reshape(-1, PAGE * width)]
    cells = np.frombuffer(b"".join(pages), "int32").reshape(-1, width)
    return np.ascontiguousarray(cells[:, 0]), cells[:, 1:], np.array(page_of, "int32")


def code_points(ranges):
    """Returns the code points of ranges, a list of int."""
    points = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        points += range(int(first, 16), int(last or first, 16) + 1)
    return points


# Rust's `char::is_whitespace`.
WHITESPACE = "9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000"

# Categories Cc, Cf and Co, without tab, newline and return; and U+FFFD. `clean_text` drops them.
CONTROL = """
0-8 B-C E-1F 7F-9F AD 600-605 61C 6DD 70F 180E 200B-200F 202A-202E 2060-2064 2066-206F E000-F8FF FEFF FFF9-FFFB FFFD
110BD 1BCA0-1BCA3 1D173-1D17A E0001 E0020-E007F F0000-FFFFD 100000-10FFFD
"""

# ASCII that is neither letter, digit nor blank; categories Pc, Pd, Ps, Pe, Pi, Pf and Po.
PUNCTUATION = """
21-2F 3A-40 5B-60 7B-7E A1 A7 AB B6-B7 BB BF 37E 387 55A-55F 589-58A 5BE 5C0 5C3 5C6 5F3-5F4 609-60A 60C-60D 61B
61E-61F 66A-66D 6D4 700-70D 7F7-7F9 830-83E 85E 964-965 970 AF0 DF4 E4F E5A-E5B F04-F12 F14 F3A-F3D F85 FD0-FD4
FD9-FDA 104A-104F 10FB 1360-1368 1400 166D-166E 169B-169C 16EB-16ED 1735-1736 17D4-17D6 17D8-17DA 1800-180A 1944-1945
1A1E-1A1F 1AA0-1AA6 1AA8-1AAD 1B5A-1B60 1BFC-1BFF 1C3B-1C3F 1C7E-1C7F 1CC0-1CC7 1CD3 2010-2027 2030-2043 2045-2051
2053-205E 207D-207E 208D-208E 2308-230B 2329-232A 2768-2775 27C5-27C6 27E6-27EF 2983-2998 29D8-29DB 29FC-29FD
2CF9-2CFC 2CFE-2CFF 2D70 2E00-2E2E 2E30-2E42 3001-3003 3008-3011 3014-301F 3030 303D 30A0 30FB A4FE-A4FF A60D-A60F
A673 A67E A6F2-A6F7 A874-A877 A8CE-A8CF A8F8-A8FA A8FC A92E-A92F A95F A9C1-A9CD A9DE-A9DF AA5C-AA5F AADE-AADF
AAF0-AAF1 ABEB FD3E-FD3F FE10-FE19 FE30-FE52 FE54-FE61 FE63 FE68 FE6A-FE6B FF01-FF03 FF05-FF0A FF0C-FF0F FF1A-FF1B
FF1F-FF20 FF3B-FF3D FF3F FF5B FF5D FF5F-FF65 10100-10102 1039F 103D0 1056F 10857 1091F 1093F 10A50-10A58 10A7F
10AF0-10AF6 10B39-10B3F 10B99-10B9C 11047-1104D 110BB-110BC 110BE-110C1 11140-11143 11174-11175 111C5-111C9 111CD
111DB 111DD-111DF 11238-1123D 112A9 114C6 115C1-115D7 11641-11643 1173C-1173E 12470-12474 16A6E-16A6F 16AF5
16B37-16B3B 16B44 1BC9F 1DA87-1DA8B
"""

# Category Mn. `strip_accents` drops these marks after the decomposition of accented letters.
MARKS = """
300-36F 483-487 591-5BD 5BF 5C1-5C2 5C4-5C5 5C7 610-61A 64B-65F 670 6D6-6DC 6DF-6E4 6E7-6E8 6EA-6ED 711 730-74A
7A6-7B0 7EB-7F3 816-819 81B-823 825-827 829-82D 859-85B 8E3-902 93A 93C 941-948 94D 951-957 962-963 981 9BC 9C1-9C4
9CD 9E2-9E3 A01-A02 A3C A41-A42 A47-A48 A4B-A4D A51 A70-A71 A75 A81-A82 ABC AC1-AC5 AC7-AC8 ACD AE2-AE3 B01 B3C B3F
B41-B44 B4D B56 B62-B63 B82 BC0 BCD C00 C3E-C40 C46-C48 C4A-C4D C55-C56 C62-C63 C81 CBC CBF CC6 CCC-CCD CE2-CE3 D01
D41-D44 D4D D62-D63 DCA DD2-DD4 DD6 E31 E34-E3A E47-E4E EB1 EB4-EB9 EBB-EBC EC8-ECD F18-F19 F35 F37 F39 F71-F7E
F80-F84 F86-F87 F8D-F97 F99-FBC FC6 102D-1030 1032-1037 1039-103A 103D-103E 1058-1059 105E-1060 1071-1074 1082
1085-1086 108D 109D 135D-135F 1712-1714 1732-1734 1752-1753 1772-1773 17B4-17B5 17B7-17BD 17C6 17C9-17D3 17DD
180B-180D 18A9 1920-1922 1927-1928 1932 1939-193B 1A17-1A18 1A1B 1A56 1A58-1A5E 1A60 1A62 1A65-1A6C 1A73-1A7C 1A7F
1AB0-1ABD 1B00-1B03 1B34 1B36-1B3A 1B3C 1B42 1B6B-1B73 1B80-1B81 1BA2-1BA5 1BA8-1BA9 1BAB-1BAD 1BE6 1BE8-1BE9 1BED
1BEF-1BF1 1C2C-1C33 1C36-1C37 1CD0-1CD2 1CD4-1CE0 1CE2-1CE8 1CED 1CF4 1CF8-1CF9 1DC0-1DF5 1DFC-1DFF 20D0-20DC 20E1
20E5-20F0 2CEF-2CF1 2D7F 2DE0-2DFF 302A-302D 3099-309A A66F A674-A67D A69E-A69F A6F0-A6F1 A802 A806 A80B A825-A826
A8C4 A8E0-A8F1 A926-A92D A947-A951 A980-A982 A9B3 A9B6-A9B9 A9BC A9E5 AA29-AA2E AA31-AA32 AA35-AA36 AA43 AA4C AA7C
AAB0 AAB2-AAB4 AAB7-AAB8 AABE-AABF AAC1 AAEC-AAED AAF6 ABE5 ABE8 ABED FB1E FE00-FE0F FE20-FE2F 101FD 102E0 10376-1037A
10A01-10A03 10A05-10A06 10A0C-10A0F 10A38-10A3A 10A3F 10AE5-10AE6 11001 11038-11046 1107F-11081 110B3-110B6
110B9-110BA 11100-11102 11127-1112B 1112D-11134 11173 11180-11181 111B6-111BE 111CA-111CC 1122F-11231 11234
11236-11237 112DF 112E3-112EA 11300-11301 1133C 11340 11366-1136C 11370-11374 114B3-114B8 114BA 114BF-114C0
114C2-114C3 115B2-115B5 115BC-115BD 115BF-115C0 115DC-115DD 11633-1163A 1163D 1163F-11640 116AB 116AD 116B0-116B5
116B7 1171D-1171F 11722-11725 11727-1172B 16AF0-16AF4 16B30-16B36 16F8F-16F92 1BC9D-1BC9E 1D167-1D169 1D17B-1D182
1D185-1D18B 1D1AA-1D1AD 1D242-1D244 1DA00-1DA36 1DA3B-1DA6C 1DA75 1DA84 1DA9B-1DA9F 1DAA1-1DAAF 1E8D0-1E8D6
E0100-E01EF
"""

# Other characters with a canonical combining class: only their order changes.
REORDERED = """
8D4-8E1 1B44 1BAA 1BF2-1BF3 1DFB 302E-302F A953 A9C0 111C0 11235 1134D 11442 11446 116B6 11C3F 1D165-1D166 1D16D-1D172
1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E944-1E94A
"""

# The blocks around which `handle_chinese_chars` puts blanks. Extension E begins at 2B820; the library has 2B920.
CHINESE = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B81F 2B920-2CEAF 2F800-2FA1F"

# Decompositions of Unicode 13 and later.
NOT_DECOMPOSED = "105C9 105E4 11383 11385 1138E 11391 113C5 113C7-113C8 11938 16121-16128 16D68-16D6A"

# Capitals of Unicode 14 to 17, which Python may not know yet, and the first small letter of each range.
NEW_CAPITALS = """
1C89>1C8A 2C2F>2C5F A7C0>A7C1 A7CB>264 A7CC>A7CD A7CE>A7CF A7D0>A7D1 A7D2>A7D3 A7D4>A7D5 A7D6>A7D7 A7D8>A7D9 A7DA>A7DB
A7DC>19B 10570-1057A>10597 1057C-1058A>105A3 1058C-10592>105B3 10594-10595>105BB 10D50-10D65>10D70 16EA0-16EB8>16EBB
"""
SMALL = {}
for part in NEW_CAPITALS.split():
    capitals, _, small = part.partition(">")
    SMALL.update(zip(code_points(capitals), itertools.count(int(small, 16))))


def lower(character):
    """Lower-cases a single character: no final sigma, and a dotted capital I becomes two characters."""
    return chr(SMALL[ord(character)]) if ord(character) in SMALL else character.lower()


_NOT_DECOMPOSED = frozenset(code_points(NOT_DECOMPOSED))


def decompose(character):
    """Decomposes a character by NFD."""
    return character if ord(character) in _NOT_DECOMPOSED else unicodedata.normalize("NFD", character)


@functools.cache
def letters():
    """Returns the code points with a small letter or a decomposition. All lie in the first three planes."""
    every = map(chr, range(0x30000))
    return [ord(character) for character in every if lower(character) != character or decompose(character) != character]
