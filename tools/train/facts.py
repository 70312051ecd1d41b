"""Facts that users tell: how they say them, ask for them, and are answered."""

import words as W
from tales import a, cap, pick


class Fact:
    """`key` names what it is about, `telling` are sentences without a full stop, `asking` questions without a mark;
    `answer` begins in lower case unless with a name; `what` completes "You have not told me ..."; `value` is what an
    answer must contain; `inverse` are questions that go the other way, with their answers."""

    def __init__(self, key, value, telling, asking, answer, what, inverse=(), guess=None):
        self.key, self.value, self.telling, self.asking, self.answer, self.what = key, value, telling, asking, answer, what
        self.inverse, self.guess = inverse, guess


MALE = set("brother father husband son grandfather uncle nephew".split())
FEMALE = set("sister mother wife daughter grandmother aunt niece".split())


def number(r):
    n = r.random()
    return str(r.randint(1, 99) if n < 0.4 else r.randint(100, 999) if n < 0.7 else r.randint(1000, 9999))


def coined(r):
    """A name that is in no list."""
    return cap(pick(r, W.SYLLABLES) + (pick(r, W.SYLLABLES) if r.random() < 0.6 else "") + pick(r, W.ENDINGS))


def person(r, held):
    if held:
        return pick(r, W.HELD_NAMES)
    n = r.random()
    return coined(r) if n < 0.2 else pick(r, W.PROPER) if n < 0.5 else pick(r, W.NAMES)


def pet(r, held):
    if held:
        return pick(r, W.HELD_PETS)
    n = r.random()
    return coined(r) if n < 0.15 else cap(pick(r, W.NOUNS if n < 0.35 else W.WILD)) if n < 0.5 else pick(r, W.PROPER if n < 0.6 else W.PETS if n < 0.9 else W.NAMES)


def city(r, held):
    if held:
        return pick(r, W.HELD_CITIES)
    n = r.random()
    return coined(r) if n < 0.15 else pick(r, W.PROPER) if n < 0.35 else pick(r, W.CITIES)


def word(r, held):
    return pick(r, W.HELD_WORDS) if held else coined(r).lower() if r.random() < 0.06 else pick(r, W.WILD if r.random() < 0.75 else W.WORDS)


def item(r, held, known, unseen):
    """Something that one has."""
    return pick(r, unseen) if held else pick(r, W.NOUNS) if r.random() < 0.4 else pick(r, known)


def clock(r):
    return pick(r, [f"{r.randint(1, 12)} o'clock", f"{r.randint(1, 12)}:{pick(r, ['15', '30', '45', '10', '20', '40', '50'])}", f"half past {pick(r, 'one two three four five six seven eight nine ten eleven'.split())}"])


FAVOURITES = [("colour", W.COLOURS), ("food", W.FOODS), ("fruit", W.FRUITS), ("drink", W.DRINKS), ("sport", W.SPORTS), ("season", W.SEASONS), ("animal", W.ANIMALS),
              ("day of the week", W.DAYS), ("month", W.MONTHS), ("flower", W.FLOWERS), ("instrument", W.INSTRUMENTS), ("subject", W.SUBJECTS), ("city", W.CITIES), ("country", W.COUNTRIES), ("number", None), ("word", W.WORDS)]
NUMBERS = ["lucky number", "house number", "room number", "locker number", "bus number", "shoe size", "door code", "PIN", "flight number", "ticket number", "phone extension", "seat number", "code"]


def my_name(r, held):
    v = person(r, held)
    return Fact("name", v, [f"my name is {v}"] * 4 + [f"I am {v}", f"I am called {v}", f"you can call me {v}", f"I'm {v}", f"call me {v}"],
                ["what is my name", "what's my name", "do you remember my name", "do you know my name", "who am I", "what am I called", "can you tell me my name", "do you know who I am", "what was my name"], f"your name is {v}", "your name", guess=("is my name {}", v, lambda: person(r, False), "your name is {}"))


def age(r, held):
    v = r.randint(5, 99)
    return Fact("age", str(v), [f"I am {v} years old", f"I'm {v} years old", f"I am {v}", f"my age is {v}"], ["how old am I", "what is my age", "do you remember how old I am", "what's my age"], f"you are {v} years old", "how old you are")


def live(r, held):
    v = city(r, held)
    return Fact("live", v, [f"I live in {v}", f"my home is in {v}", f"I live in {v} now", f"my home town is {v}"], ["where do I live", "which city do I live in", "do you remember where I live", "what city do I live in", "in which city do I live", "what is my home town"], f"you live in {v}", "where you live",
                guess=("do I live in {}", v, lambda: city(r, False), "you live in {}"))


def come(r, held):
    v = pick(r, W.COUNTRIES) if not held else city(r, held)
    return Fact("come", v, [f"I come from {v}", f"I am from {v}", f"I'm from {v}", f"I was born in {v}"], ["where do I come from", "where am I from", "where was I born", "which country do I come from"], f"you come from {v}", "where you come from")


def job(r, held):
    v = pick(r, W.JOBS)
    return Fact("job", v, [f"I am {a(v)}", f"I work as {a(v)}", f"my job is {a(v)}", f"I'm {a(v)}"], ["what is my job", "what do I do for a living", "what do I work as", "do you remember my job", "what's my job"], f"you are {a(v)}", "your job")


def my_pet(r, held):
    k, v = pick(r, W.PET_KINDS), pet(r, held)
    look = pick(r, W.COLOURS[:6]) + " " if r.random() < 0.15 else ""
    telling = [f"I have {a(look + k)} called {v}", f"I have {a(look + k)} named {v}", f"my {k} is called {v}", f"my {k}'s name is {v}", f"the name of my {k} is {v}", f"we have {a(look + k)} called {v}", f"my {k} is named {v}"]
    asking = [f"what is my {k} called", f"what is my {k}'s name", f"what is the name of my {k}", f"what's my {k}'s name", f"do you remember the name of my {k}", f"what's my {k} called", f"how is my {k} called", f"do you know my {k}'s name", f"what did I call my {k}"]
    return Fact("pet " + k, v, telling, asking, f"your {k} is called {v}", f"the name of your {k}", [(f"who is {v}", f"{v} is your {k}"), (f"which pet is called {v}", f"your {k} is called {v}")],
                guess=(f"is my {k} called {{}}", v, lambda: pet(r, False), f"your {k} is called {{}}"))


def relative(r, held):
    k = pick(r, W.RELATIVES)
    v = person(r, held)
    if k.split()[-1] in MALE or k.split()[-1] in FEMALE:
        men = k.split()[-1] in MALE
        v = pick(r, (W.HELD_MEN if men else W.HELD_WOMEN) if held else W.MEN if men else W.WOMEN) if held or r.random() < 0.65 else v
    telling = [f"my {k} is called {v}", f"my {k}'s name is {v}", f"the name of my {k} is {v}", f"I have {a(k)} called {v}", f"my {k} is named {v}", f"{v} is my {k}"]
    asking = [f"what is my {k} called", f"what is my {k}'s name", f"what is the name of my {k}", f"who is my {k}", f"do you remember my {k}'s name", f"what's my {k}'s name", f"do you know what my {k} is called"]
    return Fact("relative " + k, v, telling, asking, f"your {k} is called {v}", f"the name of your {k}", [(f"who is {v}", f"{v} is your {k}")],
                guess=(f"is my {k} called {{}}", v, lambda: person(r, False), f"your {k} is called {{}}"))


def relative_place(r, held):
    k, v = pick(r, W.RELATIVES), city(r, held)
    return Fact("home of " + k, v, [f"my {k} lives in {v}", f"my {k}'s home is in {v}"], [f"where does my {k} live", f"which city does my {k} live in", f"do you know where my {k} lives"], f"your {k} lives in {v}", f"where your {k} lives")


def relative_job(r, held):
    k, v = pick(r, W.RELATIVES), pick(r, W.JOBS)
    return Fact("job of " + k, v, [f"my {k} is {a(v)}", f"my {k} works as {a(v)}"], [f"what is my {k}'s job", f"what does my {k} do for a living", f"what does my {k} work as"], f"your {k} is {a(v)}", f"what your {k} does")


def favourite(r, held):
    k, values = pick(r, FAVOURITES)
    v = number(r) if values is None else pick(r, W.HELD_CITIES) if held and k == "city" else word(r, held) if k == "word" else pick(r, values)
    if k == "animal":
        telling = [f"my favourite animal is the {v}"]
        return Fact("favourite animal", v, telling, ["what is my favourite animal", "what's my favourite animal", "which animal do I like best"], f"your favourite animal is the {v}", "your favourite animal")
    be = "are" if v.endswith("s") and k in ("food", "fruit", "flower") else "is"
    telling = [f"my favourite {k} {be} {v}"] * 3 + [f"{v} {be} my favourite {k}", f"the {k} I like best is {v}"]
    asking = [f"what is my favourite {k}", f"what's my favourite {k}", f"do you remember my favourite {k}", f"which {k} do I like best", f"which {k} is my favourite", f"can you tell me my favourite {k}", f"what {k} do I like best"]
    other = (lambda: number(r)) if values is None else lambda: pick(r, values)
    return Fact("favourite " + k, v, telling, asking, f"your favourite {k} {be} {v}", f"your favourite {k}", guess=(f"is my favourite {k} {{}}", v, other, f"your favourite {k} {be} {{}}"))


def colour(r, held):
    k, v = item(r, held, W.THINGS, W.HELD_THINGS), pick(r, W.COLOURS)
    telling = [f"my {k} is {v}", f"I have {a(v)} {k}", f"I bought {a(v)} {k}", f"the colour of my {k} is {v}", f"I painted my {k} {v}"]
    asking = [f"what colour is my {k}", f"which colour is my {k}", f"what is the colour of my {k}", f"do you remember the colour of my {k}", f"what colour did I say my {k} is"]
    return Fact("colour " + k, v, telling, asking, f"your {k} is {v}", f"the colour of your {k}", guess=(f"is my {k} {{}}", v, lambda: pick(r, W.COLOURS), f"your {k} is {{}}"))


def spot(r, held):
    k, v = item(r, held, W.SMALL, W.HELD_SMALL), pick(r, W.SPOTS)
    telling = [f"my {k} is {v}", f"I put my {k} {v}", f"I left my {k} {v}", f"the {k} is {v}", f"I keep my {k} {v}"]
    asking = [f"where is my {k}", f"where did I put my {k}", f"where is the {k}", f"do you know where my {k} is", f"where did I leave my {k}", f"can you tell me where my {k} is"]
    said = v.replace("my", "your")
    return Fact("spot " + k, said, telling, asking, f"your {k} is {said}", f"where your {k} is")


def my_number(r, held):
    k, v = pick(r, NUMBERS), number(r)
    return Fact("number " + k, v, [f"my {k} is {v}", f"my {k} is {v}", f"the number {v} is my {k}"], [f"what is my {k}", f"what's my {k}", f"do you remember my {k}", f"can you tell me my {k}", f"what was my {k}"], f"your {k} is {v}", f"your {k}")


def secret(r, held):
    k = pick(r, ["secret word", "password", "magic word", "code word", "word of the day", "word", "key word"])
    v = word(r, held)
    return Fact("secret " + k, v, [f"the {k} is {v}", f"the {k} is \"{v}\"", f"remember the {k}: {v}", f"{v} is the {k}"], [f"what is the {k}", f"what's the {k}", f"do you remember the {k}", f"what was the {k}", f"can you tell me the {k}"], f"the {k} is {v}", f"the {k}")


def remember(r, held):
    v = number(r)
    return Fact("the number", v, [f"remember the number {v}", f"please remember the number {v}", f"the number is {v}", f"keep the number {v} in mind"], ["what is the number", "what was the number", "which number did I ask you to remember", "what number should you remember", "do you remember the number"], f"the number is {v}", "the number")


def meal(r, held):
    k, v = pick(r, ["breakfast", "lunch", "dinner"]), pick(r, W.FOODS + W.FRUITS)
    return Fact("meal " + k, v, [f"I had {v} for {k}", f"I ate {v} for {k}", f"for {k} I had {v}"], [f"what did I have for {k}", f"what did I eat for {k}", f"what was my {k}"], f"you had {v} for {k}", f"what you had for {k}")


def likes(r, held):
    v = pick(r, W.HOBBIES)
    return Fact("hobby", v, [f"I like {v}", f"my hobby is {v}", f"I love {v}", f"in my free time I like {v}"], ["what do I like", "what is my hobby", "what do I like to do", "what's my hobby", "do you remember my hobby", "what do I do in my free time"], f"you like {v}", "what you like to do")


def hates(r, held):
    v = pick(r, W.FOODS)
    return Fact("hate", v, [f"I do not like {v}", f"I hate {v}", f"I don't like {v}", f"I never eat {v}"], ["what do I not like", "which food do I hate", "what do I never eat", "what don't I like", "what food do I not like"], f"you do not like {v}", "what you do not like")


def leaves(r, held):
    k, v = pick(r, W.VEHICLES), clock(r)
    return Fact("leaves " + k, v, [f"my {k} leaves at {v}", f"the {k} leaves at {v}", f"I take the {k} at {v}"], [f"when does my {k} leave", f"at what time does my {k} leave", f"when does the {k} leave", f"what time is my {k}"], f"your {k} leaves at {v}", f"when your {k} leaves")


def event(r, held):
    k = pick(r, W.EVENTS)
    v = pick(r, W.DAYS) if r.random() < 0.7 else f"{r.randint(1, 30)} {pick(r, W.MONTHS)}"
    return Fact("event " + k, v, [f"my {k} is on {v}", f"the {k} is on {v}", f"I have {a(k)} on {v}", f"on {v} I have {a(k)}"], [f"when is my {k}", f"on which day is my {k}", f"what day is my {k}", f"when is the {k}", f"do you remember when my {k} is"], f"your {k} is on {v}", f"when your {k} is")


def birthday(r, held):
    v = pick(r, W.MONTHS)
    on = "in"
    if r.random() < 0.5:
        v, on = f"{r.randint(1, 28)} {v}", "on"
    return Fact("birthday", v, [f"my birthday is {on} {v}", f"I was born {on} {v}"], ["when is my birthday", "do you remember my birthday", "when was I born", "what day is my birthday"], f"your birthday is {on} {v}", "your birthday")


def theirs(r, held):
    """Something about somebody else."""
    n, kind = person(r, held), r.randrange(8)
    if kind == 0:
        v = city(r, held)
        return Fact("live " + n, v, [f"{n} lives in {v}", f"my friend {n} lives in {v}"], [f"where does {n} live", f"which city does {n} live in"], f"{n} lives in {v}", f"where {n} lives", [(f"who lives in {v}", f"{n} lives in {v}")])
    if kind == 1:
        v = pick(r, W.FOODS + W.FRUITS)
        return Fact("likes " + n, v, [f"{n} likes {v}", f"{n} loves {v}"], [f"what does {n} like", f"what does {n} like to eat", f"what does {n} love"], f"{n} likes {v}", f"what {n} likes", [(f"who likes {v}", f"{n} likes {v}")])
    if kind == 2:
        v = pick(r, W.JOBS)
        return Fact("job " + n, v, [f"{n} is {a(v)}", f"{n} works as {a(v)}"], [f"what is {n}'s job", f"what does {n} do", f"what does {n} work as"], f"{n} is {a(v)}", f"what {n} does", [(f"who is the {v}", f"{n} is the {v}")])
    if kind == 3:
        k, v = item(r, held, W.THINGS, W.HELD_THINGS), pick(r, W.COLOURS)
        return Fact(f"{k} of {n}", v, [f"{n}'s {k} is {v}", f"{n} has {a(v)} {k}"], [f"what colour is {n}'s {k}", f"which colour is {n}'s {k}", f"what is the colour of {n}'s {k}"], f"{n}'s {k} is {v}", f"the colour of {n}'s {k}", [(f"who has {a(v)} {k}", f"{n} has {a(v)} {k}")])
    if kind == 4:
        k, v = pick(r, W.PET_KINDS), pet(r, held)
        return Fact(f"{k} of {n}", v, [f"{n} has {a(k)} called {v}", f"{n}'s {k} is called {v}"], [f"what is {n}'s {k} called", f"what is the name of {n}'s {k}", f"what's {n}'s {k} called"], f"{n}'s {k} is called {v}", f"the name of {n}'s {k}", [(f"who is {v}", f"{v} is {n}'s {k}")])
    if kind == 5:
        v = str(r.randint(3, 99))
        return Fact("age " + n, v, [f"{n} is {v} years old"], [f"how old is {n}", f"what is {n}'s age"], f"{n} is {v} years old", f"how old {n} is", [(f"who is {v} years old", f"{n} is {v} years old")])
    if kind == 6:
        v = pick(r, W.SPOTS[:16])
        return Fact("spot " + n, v, [f"{n} is {v}", f"{n} sits {v}"], [f"where is {n}"], f"{n} is {v}", f"where {n} is", [(f"who is {v}", f"{n} is {v}")])
    v = pick(r, W.MONTHS)
    return Fact("birthday " + n, v, [f"{n}'s birthday is in {v}", f"{n} was born in {v}"], [f"when is {n}'s birthday", f"when was {n} born"], f"{n}'s birthday is in {v}", f"when {n}'s birthday is")


MAKERS = [my_name] * 8 + [age] * 3 + [live] * 4 + [come] * 2 + [job] * 2 + [my_pet] * 8 + [relative] * 6 + [relative_place] * 2 + [relative_job] + [favourite] * 9 + [colour] * 6 + [spot] * 5 + [my_number] * 4 + \
    [secret] * 4 + [remember] * 2 + [meal] * 2 + [likes] * 2 + [hates] + [leaves] * 2 + [event] * 3 + [birthday] * 2 + [theirs] * 8


def fact(r, held=False):
    maker = pick(r, MAKERS)
    made = maker(r, held)
    made.maker = maker
    return made
