"""Stories of who went where with what, questions about them, and the answers with all that they follow from."""

import random

PEOPLE = "anna ben carla david emma frank grace henry".split()
PLACES = "attic bedroom cellar garage garden hall kitchen office".split()
THINGS = "apple book coat hammer key lamp letter ring".split()
CONTAINERS = "bag basket box bucket case chest".split()
WORDS = sorted({*PEOPLE, *PLACES, *THINGS, *CONTAINERS, *"is went to the took in where everyone so : . ?".split()})


def make_stories(count, seed, taboo=frozenset()):
    """`count` different examples of (story, question, answer, number of facts that the answer follows from).

    Args:
        count: how many.
        seed: the same seed gives the same examples.
        taboo: stories that may not be among them.
    """
    chance, examples, told = random.Random(seed), [], set(taboo)
    while len(examples) < count:
        example = make_story(chance)
        if example[0] not in told:
            told.add(example[0])
            examples.append(example)
    return examples


def make_story(chance):
    """A story of 3 to 13 sentences, and a question that one to five of them answer together.

    A thing may be in a container, and someone took either. Whoever went somewhere may go on to somewhere else: the last
    place of the one who counts is right, wherever others went after.
    """
    people = chance.sample(PEOPLE, chance.randint(2, 5))
    things, containers = chance.sample(THINGS, chance.randint(1, 3)), chance.sample(CONTAINERS, chance.randint(0, 2))
    inside = dict(zip(things, containers))
    holders = {item: chance.choice(people) for item in (*containers, *things[len(containers) :])}
    walkers = [*people, *chance.choices(people, k=chance.randint(0, 3))]
    chance.shuffle(walkers)
    places, sentences = {}, []
    for person in walkers:
        places[person] = chance.choice([place for place in PLACES if place != places.get(person)])
        sentences.append(went(person, places))
    for sentence in [*(put(thing, inside) for thing in inside), *(took(item, holders) for item in holders)]:
        sentences.insert(chance.randint(0, len(sentences)), sentence)
    # Two questions of five are for everyone: whose answers teach most, as each person's place is a word of theirs.
    subject = chance.choice([*things, *things, *containers, chance.choice(people)])
    subject = "everyone" if chance.random() < 0.4 else subject
    question = f"where is {subject} ?" if subject in ("everyone", *people) else f"where is the {subject} ?"
    return " ".join(sentences), question, *answer(subject, inside, holders, places)


def answer(subject, inside, holders, places):
    """From the thing to the place, or where everyone is, by the alphabet; and the number of facts on the way.

    It begins with what was asked for, so that each fact is found by words before it: the first one like all others.
    """
    if subject == "everyone":
        facts = [went(person, places) for person in sorted(places)]
        return " ".join(facts), len(facts)
    asked, facts = subject, []
    if subject in inside:
        facts.append(put(subject, inside))
        subject = inside[subject]
    if subject in holders:
        facts.append(took(subject, holders))
        subject = holders[subject]
    facts.append(went(subject, places))
    return " ".join([f"{asked} :", *facts, f"so in the {places[subject]}"]), len(facts)


def put(thing, inside):
    return f"the {thing} is in the {inside[thing]} ."


def took(item, holders):
    return f"{holders[item]} took the {item} ."


def went(person, places):
    return f"{person} went to the {places[person]} ."
