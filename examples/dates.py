"""Dates as people write them: Unicode's CLDR, through the package babel. All are of the Gregorian calendar."""

import datetime
import random
import re
import unicodedata

import babel.dates

LANGUAGES = """af am ar az be bg bn ca cs cy da de el en es et eu fa fi fil fr ga gl gu he hi hr hu hy id is it ja ka
    kk km kn ko lo lt lv mk ml mn mr ms mt my nb ne nl pa pl pt ro ru si sk sl sq sr sv sw ta te th tr uk ur uz vi
    zh zh_Hant""".split()
FORMATS = "full long medium yMd yMEd yMMMd yMMMEd yMMMMd yMMMMEEEEd".split()  # those of CLDR with the whole year
ZEROS = {"ar": "٠", "bn": "০", "fa": "۰", "hi": "०", "mr": "०", "my": "၀", "ne": "०"}  # digits in use beside 0 to 9
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)


def make_pairs(count, longest, seed):
    """Training and held-out pairs, (language, text, date).

    Every tenth day is held out: its date occurs in no language's training pairs, and so do its texts,
    as no text means two dates.

    Args:
        count: number of pairs, of which about a tenth is held out.
        longest: most characters of a text; longer ones stay out.
        seed: the same seed gives the same pairs.
    """
    chance = random.Random(seed)
    forms = list(all_forms())
    meanings, training, held_out = {}, [], []
    while len(training) + len(held_out) < count:
        date = FIRST + datetime.timedelta(chance.randint(0, (LAST - FIRST).days))
        language, pattern, zero = chance.choice(forms)
        text = write(date, language, pattern, zero)
        if len(text) <= longest:
            if meanings.setdefault(text, date) != date:
                raise ValueError(f"{text!r} means {date} and {meanings[text]}; take its pattern out of `all_forms`.")
            (training if date.toordinal() % 10 else held_out).append((language, text, date))
    return training, held_out


def all_forms():
    """Ways to write a date: language, pattern, and the zero of the digits.

    No text in them means two dates: a test writes every day of a year in all of them. It is close at
    times: "3 listopada 2018" is Polish and in November, "3. listopada 2018." Croatian and in October.
    """
    for language in LANGUAGES:
        locale = babel.Locale.parse(language)
        known = {**locale.date_formats, **locale.datetime_skeletons}
        patterns = sorted({known[name].pattern for name in FORMATS if name in known})
        for pattern in patterns:
            if not is_ambiguous(clean(pattern)):
                yield from ((language, pattern, zero) for zero in "0" + ZEROS.get(language, ""))


def write(date, language, pattern, zero="0"):
    """The date's text, as `clean` leaves it."""
    text = babel.dates.format_date(date, pattern, language)
    return clean(text.translate({ord("0") + i: ord(zero) + i for i in range(10)}))


def clean(text):
    """What writers differ in goes: capitals, commas, invisible marks, the "th" of "4th"."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub(r"[,،፣、\u200b-\u200f]|(?<=\d)(st|nd|rd|th|er)\b", " ", text).split())


def is_ambiguous(text):
    """Whether a date, or its pattern, has slashes before the year: 3/4/2018 is in April or in March."""
    return re.search(r"/(\d{4}|y)", text) is not None


def figures(text):
    """The numbers in a text, of any script's digits. In CLDR's formats the year and the day are among them."""
    return {int(number) for number in re.findall(r"\d+", text)}
