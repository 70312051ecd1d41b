"""Short stories in simple words, put together from many small pieces."""

import re

import words as W

_PARSED = {}


def _parse(text):
    """Text with [one|other] and {slot} as nested lists."""
    def read(at, stops):
        parts, plain = [], []
        def flush():
            if plain:
                parts.append("".join(plain))
                plain.clear()
        while at < len(text) and text[at] not in stops:
            c = text[at]
            if c == "[":
                flush()
                choices = []
                at += 1
                while True:
                    part, at = read(at, "|]")
                    choices.append(part)
                    at += 1
                    if text[at - 1] == "]":
                        break
                parts.append(choices)
            elif c == "{":
                flush()
                end = text.index("}", at)
                parts.append((text[at + 1 : end],))
                at = end + 1
            else:
                plain.append(c)
                at += 1
        flush()
        return parts, at
    return read(0, "")[0]


def fill(r, text, slots=None):
    """One way to read a template: [one|other] is a choice, {name} a slot."""
    parsed = _PARSED.get(text)
    if parsed is None:
        parsed = _PARSED[text] = _parse(text)
    out = []

    def walk(parts):
        for part in parts:
            if type(part) is str:
                out.append(part)
            elif type(part) is tuple:
                out.append(slots[part[0]])
            else:
                walk(part[int(r.random() * len(part))])
    walk(parsed)
    return "".join(out)


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def cap(text):
    return text[0].upper() + text[1:]


def pick(r, items):
    return items[int(r.random() * len(items))]


ADJECTIVES = "little small young old kind clever lazy brave shy happy curious tiny big grumpy gentle quiet cheerful lonely friendly careful".split()
LOOKS = "red blue green yellow white golden silver old small shiny round wooden big tiny pretty strange".split()
HOMES = ["in [a|the] [big|dark|green|quiet|deep] forest", "by [a|the] [wide|slow|cold|little] river", "on [a|the] [small|windy|sunny] hill", "in a [small|quiet|little] village",
         "near [a|the] [blue|deep|calm] lake", "at the edge of the [forest|town|meadow]", "in a [cosy|tiny|yellow|little] house", "on a [busy|small|green] farm",
         "under an old [oak|apple|willow] tree", "in a [big|noisy|busy] city", "by the [sea|sea|harbour]", "in a [green|wide|sunny] valley", "on a [little|lonely|small] island",
         "behind the [old mill|white church|school]", "in a garden [full of flowers|with a high wall]"]
TRIPS = ["the [dark |green |old |]forest", "the [river|lake|pond|sea|beach]", "the [old|wooden|long] bridge", "the [market|village|town]", "the [top of the hill|high hill|mountain]",
         "the [meadow|garden|field|orchard]", "the [old|empty] [house|mill|barn]"]
WEATHER = ["One [sunny|warm|bright|cold|windy|rainy|cloudy|foggy|quiet|fine] [morning|day|afternoon|evening]", "One day", "One [night|evening]", "Early one morning", "On a [warm|cold|bright|grey] [spring|summer|autumn|winter] day",
           "[Last|One] [spring|summer|autumn|winter]"]
FOOD = ["bread", "apples", "honey", "soup", "nuts", "berries", "cake", "cheese", "carrots", "plums", "pancakes", "pie"]
PLAY = ["sing", "dance", "swim", "play in the sun", "sleep", "climb trees", "tell jokes", "look at the stars", "run", "eat {food}", "collect shells", "draw pictures", "make music", "watch the clouds", "dig holes", "read books"]
FEEL_GOOD = ["happy", "glad", "very happy", "proud", "so happy", "full of joy"]
OPEN = ["[Once upon a time|Once|Long ago|A long time ago|One time], [there was|there lived] {A_kind} [named|called] {N}. ",
        "{N} was {A_kind}[ who lived {home}|]. ", "{N} the {kind} lived {home}. ", "[There was once|Once there was|In a land far away there was] {A_kind} [called|named|whose name was] {N}. ",
        "{home_cap} lived {A_kind} [named|called] {N}. "]
OPEN_NAMELESS = ["[Once upon a time|Once|Long ago|A long time ago], [there was|there lived] {A_kind}[ who lived {home}|]. ", "{home_cap} [there lived|lived] {A_kind}. "]
HABIT = ["{He} [liked|loved] to {play}. ", "Every [day|morning|evening], {he} [liked to|would] {play}. ", "{He} had a [warm|small|cosy|soft] bed and [a red blanket|many books|a round window|a little garden]. ",
         "{He} lived there with {his} [mother|father|sister|brother|grandmother|family]. ", "[Everyone|The neighbours|All the animals] liked {him}[ very much|]. ", "{He} was [never|often|sometimes] [sad|tired|bored|alone]. ", "", ""]
END = ["[From that day on|After that|Since then], {N} and {F} were [good|best|the best of] friends. ", "{N} was {glad}. ", "That night, {N} slept [very well|like a stone|with a smile]. ", "And [so|then] {N} went home, tired [but|and] happy. ",
       "{N} never forgot that day. ", "And they all lived happily [ever after|until the end of their days]. ", "They [laughed|danced|sang] until the [sun went down|moon came up|stars came out]. ", "\"[This was|It was|What] a [good|wonderful|lovely] day,\" said {N}. "]
END_ALONE = ["{N} was {glad}. ", "That night, {N} slept [very well|like a stone|with a smile]. ", "And so {N} went home, tired [but|and] happy. ", "{N} never forgot that day. ", "\"[This was|It was|What] a [good|wonderful|lovely] day,\" said {N}. ", "From then on, {N} was [never|no longer] [afraid|sad|alone]. "]

# Plots: a list of sentences; F is a friend (fkind, name F), t a thing.
PLOTS = [
    ["{weather}, {N} found {A_t} {in_trip}. ", "\"[Whose is this|Who has lost this|What a lovely {t}|I wonder whose {t} this is]?\" [said|asked|thought] {N}. ", "{He} [asked|went to] {F} the {fkind}. \"[Is this yours|Is this your {t}|Have you lost {a_t}]?\" ",
     "\"[Yes|Oh yes|Thank you], [it is mine|that is my {t}|I lost it yesterday]!\" said {F}. [\"I [looked|searched] for it [everywhere|all day|all night].\" |]", "{N} gave the {t} [back|back to {F}]. ", "{F} [was so happy that {fhe} gave {him} [some {food}|a big hug|{food} and tea]|thanked {him} and [shared some {food}|sang a song]]. "],
    ["{weather}, {N} [lost|could not find] {his} {t}. ", "{He} looked [under the bed|in the kitchen|behind the door], [in the garden|under the table|in every box] and [everywhere|even on the roof|by the road]. [But the {t} was not there. |It was nowhere. ]", "{He} was [very |so |]sad and began to cry. ",
     "[Then|Just then], {A_fkind} called {F} came by. \"[Why are you crying|What is the matter|Why are you so sad]?\" {fhe} asked. ", "\"I have lost my {t},\" said {N}. ", "\"I will help you,\" said {F}. [They looked {in_trip} together. |Together they went to {trip}. ]", "[And there it was|There lay the {t}], [under a leaf|behind a stone|in the grass|next to a tree]! "],
    ["{N} was [afraid|scared] of [the dark|deep water|thunder|the night|high places|loud noises]. ", "[All the others|The other children|{his_cap} friends] laughed at {him}. [{N} felt sad. |]", "{weather}, {N} heard a [cry|small voice|sound]. [\"Help! Help!\" |]It was {F} the {fkind}, who [had fallen into a hole|was stuck in the mud|could not find the way home|was caught in a bush]. ",
     "{N} was still afraid, but {he} [thought of {F}|took a deep breath|closed {his} eyes] and went [on|to help]. ", "{He} pulled and pulled, [and at last {F} was free|until {F} was free]. ", "\"You are very brave,\" said {F}. "],
    ["{weather}, {N} wanted to [bake a cake|build a house|make a boat|build a tower|cook a big soup|plant a garden]. ", "But it was too [hard|much work] for one. ", "So {he} asked {F} the {fkind}: \"[Will you help me|Can you help me], please?\" ", "\"[I am too tired|I have no time|I want to sleep],\" said {F}[ and turned away|]. ",
     "{N} worked all [day|morning] alone. [In the end|At last], it was [done|ready]. ", "When {F} saw it, {fhe} was [ashamed|sorry]. \"I am sorry,\" said {F}. \"[Next time I will help you|May I help you now|I should have helped you].\" ", "{N} smiled[ and gave {F} some {food}|]. "],
    ["{weather}, {N} went to {trip}. ", "On the way {he} met {F}, {A_fkind}. \"Where are you going?\" asked {F}. ", "\"I am going to {trip},\" said {N}. \"[Come with me|Do you want to come]!\" ", "[So they went together|They walked side by side]. They saw [a rainbow|a big tree|many birds|a funny cloud|a little boat] and [ate some {food}|sang a song|told each other stories]. ",
     "[Suddenly|Then] it began to [rain|snow|get dark]. They [hid|sat] under [a big leaf|an old tree|a bridge] and waited. ", "[When the rain was over|Soon|After a while], the sun came out again. "],
    ["{N} [wanted|wished] to [fly|swim|sing|dance|read|paint] [more than anything|so much]. ", "{He} tried [once|on Monday], and it did not work. {He} tried [again|on Tuesday], and it did not work. ", "\"[Do not give up|Try once more|You must practise],\" said {F} the {fkind}. ", "[So|And so] {N} tried [every day|again and again]. ", "{weather}, [it worked|{he} could do it]! ", "\"[Look at me|I can do it|See]!\" [cried|shouted|called] {N}. "],
    ["{weather}, there was a [big|terrible|loud] storm. The wind blew [the roof off {Ns} house|{Ns} house down|and the river rose]. ", "{N} was [cold|wet|cold and wet] and had nowhere to go. ", "{He} knocked at [the door of {F} the {fkind}|{Fs} door]. \"[May I come in|Please let me in]?\" ", "\"[Of course|Come in, come in|You are welcome]!\" said {F}[ the {fkind}|]. \"[Sit by the fire|Here is some {food}|Have some {food}].\" ",
     "The next [day|morning], they [built a new house|mended the house] together. "],
    ["{N} had [ten|a lot of|a basket full of] {food}. \"[All of this is mine|I will share with nobody|These are only for me],\" {he} said. ", "{F} the {fkind} was [hungry|very hungry]. \"Can I have [a little|some], please?\" ", "\"No,\" said {N} and [ate|ate and ate]. But [soon|then] {his} [belly|stomach] hurt. ", "{F} brought {him} some [tea|water] and sat with {him}. ", "\"You are kind,\" said {N}. \"I was not. [Please take some|Let us share the rest].\" ", "[And {food} tasted much better together. |They ate together and laughed. ]"],
    ["{weather}, {N} heard a [strange|soft|funny] sound. [Tap, tap, tap. |Knock, knock. |Hoo, hoo. |Crack, crack. ]", "\"[Who is there|What is that]?\" [asked|whispered] {N}. [Nobody answered. |]", "{He} went [outside|to the door|to the window] and saw {A_fkind} with {A_t}. ", "\"[Hello|Good day], I am {F},\" said the {fkind}. \"I [brought you|have] {a_t}. [It is for you|Do you want it|It is a present].\" ", "\"[Thank you|Oh, thank you]!\" said {N}. \"[Nobody ever gave me {a_t}|I always wanted {a_t}].\" ", "They [played|talked|sat together] all [day|evening]. "],
    ["{weather}, {N} saw {A_t} [high up in a tree|at the bottom of the pond|on top of a wall|inside a cave]. ", "{He} wanted to [have|get] it. {He} [jumped|tried] and [jumped|tried], but {he} could not reach it. ", "{F} the {fkind} [laughed|looked at {him}]. \"You need [a plan|help|a long stick|a ladder],\" {fhe} said. ", "{F} [stood|climbed] on {Ns} [back|shoulders], and [together they got the {t}|then they could reach it]. ", "\"[Two are better than one|Together we can do it|That was easy],\" said {N}. "],
    ["{N} and {F} the {fkind} had a race. \"I am [much |]faster than you,\" said {F}. ", "They [ran|started] [at the old tree|by the river|when the bell rang]. {F} was [far ahead|very fast]. ", "But then {F} [stopped to eat some {food}|fell asleep in the grass|looked at a butterfly|fell over a stone]. ", "{N} [went on and on|did not stop], step by step. ", "[In the end|At the end], {N} was the first. \"[You won|You are the winner],\" said {F}. \"[I should not have laughed|You did well].\" "],
    ["{N} told a lie. \"[I have seen a wolf|There is a monster in the forest|I have a house of gold],\" {he} said. ", "[Everyone|{F} the {fkind}] believed {him} and [ran away|was afraid|told it to all the others]. [{N} laughed. |]", "But when [{N} really needed help|{he} was in trouble], nobody [came|believed {him}]. ", "\"I am sorry,\" said {N} to {F}. \"I will [always tell the truth|never lie again].\" ", "{F} [smiled|nodded] and helped {him}. "],
    ["It was {Ns} birthday, but [nobody said a word|nobody came|everybody had forgotten it]. ", "{N} [sat|went] [alone by the window|to {trip}] and felt [sad|lonely]. ", "[In the evening|Then], {he} heard a [noise|song]. [\"Surprise!\" |]There were {F} the {fkind} and all {his} friends with [a big cake|a {t}|candles and {food}]. ", "\"[Happy birthday|We did not forget you], {N}!\" they [called|shouted|sang]. "],
    ["{weather}, {N} planted a [seed|little seed|nut] {in_trip}. ", "{He} gave it water every day, but nothing [happened|grew]. ", "\"[Nothing will grow there|You are wasting your time],\" said {F} the {fkind}. ", "{N} waited [and waited|all spring|many days]. ", "[One morning|At last], there was a [tiny|small] green leaf. It grew and grew until it was a [big tree|tall tree|beautiful flower]. ", "Now {F} [sits|likes to sit] in its shade and says: \"[You were right|It was good to wait], {N}.\" "],
    ["{weather}, {N} got lost {in_trip}. ", "[Everything looked the same|It was getting dark|There was no path]. \"[Where am I|How do I get home]?\" [asked|cried] {N}. ", "[A light|A small light] [shone|moved] between the trees. It was {F} the {fkind} with {A_t}. ", "\"[Follow me|Do not be afraid|I know the way],\" said {F}. ", "They walked [for a long time|up the hill and down again|along the river]. ", "[At last|Soon] {N} saw [the lights of home|{his} house|{his} mother at the door]. \"[Thank you|You saved me], {F}!\" "],
]
THING_PLOTS = [
    ["{N} the {kind} had {A_t}. It was {his} [greatest|dearest] treasure. ", "{weather}, the {t} was [gone|broken]. [{N} did not know what to do. |]", "\"[A thief|The wind|The river] must have taken it,\" said {N}. ", "{F} the {fkind} [had an idea|knew better]. \"[Look in your pocket|Look in the grass|Let us ask the owl].\" ", "[And there was the {t}|They found the {t} under the bed|In the evening they found it]. "],
    ["{weather}, {A_t} [lay|stood] [all alone |]{in_trip}. [Nobody wanted it. |It had been there for a hundred years. ]", "{N}, {A_kind}, came by and saw it. \"[What a pretty {t}|Poor {t}|That is just what I need],\" {he} said. ", "{He} took the {t} home and cleaned it [with a cloth|until it was bright]. ", "[In the night|Then], the {t} began to [shine|sing|glow|talk]! \"[Thank you|You are kind],\" it said. \"[Make a wish|You may have one wish].\" ", "{N} thought [for a long time|hard]. \"I wish for [a friend|good weather|{food} for everyone|nothing, I have all I need],\" {he} said. ", "[And so it was|And the wish came true|The {t} laughed and shone even brighter]. "],
    ["{N}, {A_kind}, wanted [a|to have a] {t} [more than anything|so much]. But {he} had no money. ", "So {he} [worked|helped] [for the baker|in the garden|on the farm] [all week|every day|all summer]. ", "[At last|In the end], {he} had enough [money|coins] and went to the market. ", "On the way {he} met {F} the {fkind}, who was [poor and hungry|crying]. {N} [gave {F} {his} coins|bought {F} some {food} with the money]. ", "When {he} came home [without {A_t}|with empty hands], there was {A_t} [at the door|on the table]. \"[For a good heart|For {N}],\" said a [small |]note. "],
    ["The {t} [was|had been] [old and tired|sad], because [nobody needed it|it was alone]. ", "\"[I wish I were new|I wish someone would find me|What am I good for],\" [it thought|thought the {t}]. ", "{weather}, {N} the {kind} came and [picked it up|looked at it]. \"[You are the best {t} in the world|I was looking for you],\" said {N}. ", "{He} [took|carried] the {t} everywhere: to {trip}, to {other_trip}, and home again. ", "[Now|From then on] the {t} was [never|no longer] sad. "],
]
NATURE_PLOTS = [
    ["{N} the {kind} had never seen the {s}. ", "\"[What is the {s} like|Tell me about the {s}],\" {he} [asked|said to] {F}[ the {fkind}|]. ", "\"It is [big and beautiful|very big|full of wonders],\" said {F}. \"[Come, I will show you|Let us go and see].\" ", "They walked [for three days|all day|over the hills], and ate {food} on the way. ", "[And then|At last] they saw the {s}. {N} [said nothing for a long time|could not believe {his} eyes|jumped for joy]. ", "\"[It is more beautiful than I thought|I will never forget this|Thank you for bringing me here],\" {he} said. "],
    ["{weather}, {N} the {kind} [looked at|thought about|dreamed of] the {s}. ", "\"Why is the {s} so [big|quiet|beautiful|far away]?\" {he} asked {his} [mother|father|grandmother]. ", "\"[Because it is very old|Nobody knows|It has always been so],\" [she|he] said. \"[Listen|Wait and see|Close your eyes].\" ", "{N} [listened|waited] and [heard|felt] [the wind|a soft song|{his} own heart]. ", "Then {F} the {fkind} came, and they [watched|told stories about] the {s} together. "],
    ["[Far away|Long ago], near the {s}, lived {A_kind} called {N}. ", "Nobody [else |]lived there, and {N} was [often|sometimes] lonely. ", "{weather}, {A_fkind} named {F} came [to the {s}|by]. \"[I am lost|May I stay here|Is this the {s}]?\" asked {F}. ", "\"[Stay as long as you like|Welcome|Yes, come in],\" said {N}. ", "{N} showed {F} all the [secret|hidden|nice] places. They [played|sang] and ate {food}. "],
]
VIRTUE_END = {"friendship": "A friend is worth more than gold", "courage": "You can be afraid and brave at the same time", "kindness": "A kind word costs nothing", "sharing": "What you share tastes twice as good",
              "patience": "Good things take time", "honesty": "The truth is always best", "helping others": "Who helps others is never alone", "being brave": "You can be afraid and brave at the same time",
              "trying again": "Who tries again will win in the end", "saying sorry": "It is never too late to say sorry", "love": "Love makes every house warm", "hope": "After every night comes a morning"}


class Tale:
    """A story: its text, and who is in it."""

    def __init__(self, r, subject=None, name=None, other=None):
        self.r = r
        base = subject or pick(r, W.ANIMALS if r.random() < 0.7 else W.PEOPLE)
        self.subject = base
        called = name is not None
        self.kind = base if KINDS.get(base, "hero" if called else "thing") == "hero" else pick(r, W.ANIMALS if r.random() < 0.6 else W.PEOPLE)
        self.fkind = other or pick(r, W.ANIMALS if r.random() < 0.75 else W.PEOPLE)
        while self.fkind == self.kind:
            self.fkind = pick(r, W.ANIMALS)
        female, ffemale = _female(self.kind, r), _female(self.fkind, r)
        if name in _MEN or name in _WOMEN:
            female = name in _WOMEN
        self.name = name or pick(r, W.HERO_PETS if r.random() < 0.4 else W.HERO_WOMEN if female else W.HERO_MEN)
        named = lambda: pick(r, W.FRIEND_PETS if r.random() < 0.4 else W.FRIEND_WOMEN if ffemale else W.FRIEND_MEN)
        self.friend = named()
        while self.friend == self.name:
            self.friend = named()
        what = KINDS.get(base, "hero" if called else "thing")
        self.thing = base if what == "thing" else pick(r, W.OBJECTS)
        self.home = fill(r, pick(r, HOMES))
        self.food = pick(r, FOOD)
        trip = lambda: fill(r, pick(r, TRIPS))
        self.trip = trip()
        look = pick(r, LOOKS) + " " if r.random() < 0.5 else ""
        adjective = pick(r, ADJECTIVES) + " " if r.random() < 0.65 else ""
        where = lambda t: ("at " if "top" in t or "market" in t or "bridge" in t else "near ") + t
        self.s = s = dict(N=self.name, Ns=self.name + "'s", F=self.friend, Fs=self.friend + "'s", kind=self.kind, fkind=self.fkind, A_kind=a(adjective + self.kind), A_fkind=a(self.fkind),
                 he="she" if female else "he", He="She" if female else "He", his="her" if female else "his", his_cap="Her" if female else "His", him="her" if female else "him",
                 fhe="she" if ffemale else "he", home=self.home, home_cap=cap(self.home), t=self.thing, a_t=a(self.thing), A_t=a(look + self.thing), trip=self.trip, other_trip=trip(),
                 in_trip=where(self.trip), food=self.food, glad=pick(r, FEEL_GOOD), weather=fill(r, pick(r, WEATHER)), s=base)
        s["play"] = fill(r, pick(r, PLAY), s)
        if what == "thing":
            self.plot, opens = pick(r, THING_PLOTS), False
            if r.random() < 0.4:
                self.plot, opens = pick(r, PLOTS[:2] + PLOTS[8:10]), True
        elif what == "nature":
            self.plot, opens = pick(r, NATURE_PLOTS), False
        else:
            self.plot, opens = pick(r, PLOTS), True
        text = ""
        if opens:
            text += fill(r, pick(r, OPEN), s) + fill(r, pick(r, HABIT), s)
        text += "".join(fill(r, sentence, s) for sentence in self.plot)
        ends = END if "{F}" in "".join(self.plot) else END_ALONE
        text += "".join(fill(r, e, s) for e in r.sample(ends, r.choice([1, 1, 2])))
        if what == "virtue":
            text += VIRTUE_END[base] + ". "
        self.lives = self.home in text
        self.text = _paragraphs(r, text.strip())

    def more(self):
        """What happened after that."""
        r, s = self.r, self.s
        s["weather"] = fill(r, pick(r, WEATHER))
        s["t"] = pick(r, W.OBJECTS)
        s["a_t"], s["A_t"] = a(s["t"]), a(pick(r, LOOKS) + " " + s["t"])
        s["trip"] = fill(r, pick(r, TRIPS))
        s["in_trip"] = "near " + s["trip"]
        plot = pick(r, PLOTS)
        return _paragraphs(r, ("".join(fill(r, sentence, s) for sentence in plot) + fill(r, pick(r, END), s)).strip())

    def questions(self):
        """Questions on the story and their answers."""
        n, f, out = self.name, self.friend, []
        if n in self.text:
            out.append((f"[What was the {self.kind} called|What was the {self.kind}'s name|What was the name of the {self.kind}|Who was the {self.kind}]?", f"The {self.kind} was called {n}."))
            out.append((f"[Who was {n}|Who is {n}|What kind of creature was {n}]?", f"{n} was {a(self.kind)}."))
        if f in self.text and self.fkind in self.text:
            out.append((f"[Who was {f}|Who is {f}]?", f"{f} was {a(self.fkind)}."))
            out.append((f"[What was the {self.fkind} called|What was the name of the {self.fkind}]?", f"The {self.fkind} was called {f}."))
        if self.lives:
            out.append((f"Where did {n} live?", f"{n} lived {self.home}."))
        return out


_MEN, _WOMEN = set(W.MEN + W.HELD_MEN), set(W.WOMEN + W.HELD_WOMEN)


def _female(kind, r):
    if kind in "girl queen princess grandmother woman hen cow witch fairy mermaid".split():
        return True
    if kind in "boy king prince grandfather man knight wizard".split():
        return False
    return r.random() < 0.5


def _paragraphs(r, text):
    """Some stories in one piece, some in paragraphs."""
    if r.random() < 0.6:
        return text
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
    out, size = [], 0
    for sentence in sentences:
        if size >= 3 and r.random() < 0.5:
            out.append("\n\n" + sentence)
            size = 1
        else:
            out.append((" " if out else "") + sentence)
            size += 1
    return "".join(out)


KINDS = {}
for _list, _kind in ((W.ANIMALS + W.HELD_ANIMALS + W.PEOPLE + W.HELD_PEOPLE, "hero"), (W.OBJECTS + W.HELD_OBJECTS, "thing"), (W.NATURE + W.HELD_NATURE, "nature"), (W.VIRTUES, "virtue")):
    for _word in _list:
        KINDS.setdefault(_word, _kind)
