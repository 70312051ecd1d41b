"""Conversations: what users ask of a small model, and what it should answer.

Examinations use names, words and sums that no conversation of the training uses in that place."""

import random
import re

import knowledge as K
import words as W
from facts import coined, fact, favourite, my_name, my_pet, number, person, pet, relative, secret
from tales import KINDS, Tale, a, cap, fill, pick

KNOWN = K.facts()
STYLES = [  # Weights of tell, ask, sums, tale, small talk, known things, tasks, reading, strange
    (4, (6, 7, 0.6, 1.5, 1.2, 0.7, 0.7, 1, 0.4)),
    (4, (2, 4, 0.6, 2.2, 0.8, 0.7, 1, 2.5, 0.4)),
    (2, (1, 1, 0.3, 6, 1, 0.3, 0.5, 0.3, 0.3)),
    (0.4, (0.5, 0.5, 9, 0.5, 1, 0.5, 0.5, 0, 0.3)),
    (1.5, (0.5, 0.6, 1, 1, 5, 4, 2, 0.3, 1.5)),
]
NUMERALS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def held_sum(x, y):
    """Sums of two numbers of two digits that only examinations ask for."""
    return x >= 10 and y >= 10 and (31 * x + 17 * y) % 10 == 3


def ask(r, text):
    """A question as users type it."""
    text = pick(r, ["", "", "", "", "", "", "so, ", "and ", "now, ", "tell me, ", "please tell me: ", "hey, ", "by the way, ", "quick question: ", "one more question: "]) + text
    if r.random() < 0.07:
        text += " again"
    return typed(r, text, "?")


def typed(r, text, mark="."):
    text = cap(text) if r.random() < 0.85 else text
    return text + (mark if r.random() < 0.85 else "")


class Talker:
    def __init__(self, r, stories, books):
        self.r = r
        self.texts = [text for text in stories + books if len(text) > 1500]
        self.stories = [text for text in stories if len(text) > 1500]

    def conversation(self, tokens):
        """Messages (role, text) of roughly so many tokens."""
        r = self.r
        self.messages, self.size, self.limit = [], 0, tokens
        self.facts, self.tale = {}, None
        if r.random() < 0.12:
            text = pick(r, K.SYSTEMS)
            if r.random() < 0.3:
                f = fact(r)
                self.facts[f.key] = f
                text += f" The user says: {cap(pick(r, f.telling))}."
            self.put("system", text)
        weights = r.choices([w for _, w in STYLES], [n for n, _ in STYLES])[0]
        actions = [self.tell, self.recall, self.sums, self.story, self.chat, self.known, self.task, self.reading, self.strange]
        if r.random() < 0.25:
            self.say(CHAT_HELLO)
        while self.size < tokens:
            r.choices(actions, weights)[0]()
        return self.messages

    def put(self, role, text):
        self.messages.append((role, text))
        self.size += len(text) // 4 + 6

    def turn(self, user, answer):
        self.put("user", user)
        self.put("assistant", answer)

    def say(self, entry):
        question, answers = entry
        r = self.r
        slots = dict(k=pick(r, ["colour", "food", "animal", "book", "number", "word", "season"]), a_pet=a(pick(r, W.PET_KINDS)), food=pick(r, W.FOODS), country=pick(r, W.COUNTRIES), n=str(r.randint(2, 999)))
        q = fill(r, question, slots)
        mark = "?" if q.split()[0] in QUESTION_WORDS else pick(r, [".", "!", ""])
        if slots["k"] in q and q.startswith(("what", "which")) and "favourite" in q:
            mark = "?"
        answer = fill(r, pick(r, answers), slots)
        self.turn(typed(r, q, mark), answer)
        if answer.endswith("?") and "story" in answer and r.random() < 0.4:
            self.tale = Tale(r, pick(r, W.ANIMALS + W.PEOPLE))
            self.turn(typed(r, pick(r, ["yes, please", "yes", "sure", "ok", "please do", "yes, tell me one", "gladly"])), self.tale.text)

    # Facts.

    def tell(self):
        r = self.r
        new = []
        for _ in range(r.choice([1, 1, 1, 1, 2, 2, 3])):
            f = fact(r)
            if f.key not in self.facts and all(f.key != g.key for g in new):
                new.append(f)
        if not new:
            return self.correct()
        said = [pick(r, f.telling) for f in new]
        opening = pick(r, ["", "", "", "", "", "by the way, ", "just so you know, ", "hello, ", "hi, ", "please remember that ", "I want to tell you that ", "remember: ", "let me tell you something: ", "you should know that ", "oh, and "])
        if said[0].startswith(("remember", "please", "keep", "call")):
            opening = ""
        if len(said) == 1:
            text = opening + said[0]
        elif r.random() < 0.5:
            text = opening + ", ".join(said[:-1]) + " and " + said[-1]
        else:
            text = opening + ". ".join([said[0]] + [cap(s) for s in said[1:]])
        for f in new:
            self.facts.pop(f.key, None)
            self.facts[f.key] = f
        # Sometimes the first question comes in the same breath.
        if r.random() < 0.06:
            f = pick(r, new)
            return self.turn(typed(r, text) + " " + ask(r, pick(r, f.asking)), cap(f.answer) + ".")
        self.turn(typed(r, text), self.noted(new))

    def noted(self, new):
        r = self.r
        f = pick(r, new)
        if any(g.key == "name" for g in new) and r.random() < 0.7:
            name = next(g.value for g in new if g.key == "name")
            return pick(r, [f"Nice to meet you, {name}!", f"Hello, {name}! Nice to meet you.", f"Nice to meet you, {name}. I will remember your name.", f"Hello {name}, it is nice to meet you!"])
        if len(new) > 1 and r.random() < 0.5:
            return pick(r, ["Thank you, I will remember all of that.", "I see. I will remember that.", "All right, I will keep that in mind.", "Thank you for telling me. " + f"So {' and '.join(g.answer for g in new)}."])
        return pick(r, [f"I will remember that {f.answer}.", f"Thank you. I will remember that {f.answer}.", f"I see: {f.answer}.", f"Good to know that {f.answer}.", "Thank you for telling me. I will remember that.", "All right, I will remember that.", f"Noted: {f.answer}.", "I see. I will keep that in mind."])

    def correct(self):
        r = self.r
        if not self.facts:
            return
        old = pick(r, list(self.facts.values()))
        for _ in range(60):
            f = old.maker(r, False)
            f.maker = old.maker
            if f.key == old.key and f.value != old.value:
                break
        else:
            return
        self.facts.pop(old.key)
        self.facts[f.key] = f
        opening = pick(r, ["actually, ", "no, ", "sorry, ", "I was wrong: ", "that has changed: ", "correction: ", "not any more: ", "I made a mistake, ", "sorry, I meant that ", "now "])
        self.turn(typed(r, opening + pick(r, f.telling)), pick(r, [f"All right, {f.answer}.", f"Thank you for telling me. So {f.answer}.", f"I see. Now I know that {f.answer}.", f"I will remember that {f.answer}."]))
        if r.random() < 0.5:
            self.turn(ask(r, pick(r, f.asking)), cap(f.answer) + ".")

    def recall(self):
        r, n = self.r, self.r.random()
        if not self.facts or n < 0.17:
            return self.unknown()
        if n < 0.27:
            return self.correct()
        # What was told first is asked for long after.
        f = pick(r, list(self.facts.values())[: 4 if r.random() < 0.4 else None])
        if n < 0.33 and len(self.facts) > 1:
            some = list(self.facts.values())
            mine = [g.answer for g in some if g.answer.startswith(("your", "you "))][:6]
            if mine:
                question = pick(r, ["what do you know about me", "what have I told you", "what do you remember about me", "tell me what you know about me", "what did I tell you about myself"])
                known = ", ".join(mine[:-1]) + " and " + mine[-1] if len(mine) > 1 else mine[0]
                return self.turn(ask(r, question), f"You told me that {known}.")
        if n < 0.40 and f.inverse:
            question, answer = pick(r, f.inverse)
            return self.turn(ask(r, question), cap(answer) + ".")
        if n < 0.48 and f.guess:
            question, value, other, said = f.guess
            guess = value if r.random() < 0.5 else other()
            answer = f"{'Yes' if guess == value else 'No'}, {said.format(value)}."
            return self.turn(ask(r, question.format(guess)), answer)
        answer = cap(f.answer) + "."
        if r.random() < 0.06:
            answer = f"You told me that {f.answer}."
        if r.random() < 0.08:
            other = pick(r, list(self.facts.values()))
            if other is not f:
                return self.turn(typed(r, f"{pick(r, f.asking)}, and {pick(r, other.asking)}", "?"), f"{cap(f.answer)}, and {other.answer}.")
        self.turn(ask(r, pick(r, f.asking)), answer)

    def unknown(self):
        r = self.r
        f = fact(r)
        if f.key in self.facts:
            return
        question, what = pick(r, f.asking), f.what
        if f.key.startswith("spot") or f.key.startswith("leaves"):
            question = f.asking[0]
        self.turn(ask(r, question), pick(r, [f"You have not told me {what}.", f"You have not told me {what} yet.", f"I do not know {what}. You have not told me."]))
        if r.random() < 0.5:
            self.facts[f.key] = f
            self.turn(typed(r, pick(r, f.telling)), f"Thank you. I will remember that {f.answer}.")

    # Sums.

    def sums(self):
        r = self.r
        for _ in range(r.choice([1, 1, 2, 3, 4])):
            question, answer = self.one_sum()
            self.turn(typed(r, question, "?"), answer)

    def one_sum(self):
        r, n = self.r, self.r.random()
        if n < 0.42:
            while True:
                top = 10 if r.random() < 0.2 else 99
                x, y = r.randint(0, top), r.randint(0, top)
                if x + y <= 100 and not held_sum(x, y) or r.random() < 0.02 and not held_sum(x, y):
                    break
            return sum_question(r, x, y, "+"), f"{x} + {y} = {x + y}."
        if n < 0.68:
            while True:
                x = r.randint(0, 20) if r.random() < 0.2 else r.randint(0, 100)
                y = r.randint(0, x)
                if not held_sum(x, y):
                    break
            return sum_question(r, x, y, "-"), f"{x} - {y} = {x - y}."
        if n < 0.86:
            x, y = r.randint(0, 12), r.randint(0, 12)
            return sum_question(r, x, y, "x"), f"{x} x {y} = {x * y}."
        if n < 0.90:
            x, y = r.randint(1, 10), r.randint(1, 10)
            return pick(r, [f"what is {x * y} divided by {x}", f"{x * y} / {x}", f"divide {x * y} by {x}"]), f"{x * y} / {x} = {y}."
        if n < 0.95:
            x, y = r.randint(0, 99), r.randint(0, 99)
            if x == y:
                return f"which is larger, {x} or {y}", "They are the same."
            more = r.random() < 0.5
            return pick(r, [f"which is {'larger' if more else 'smaller'}, {x} or {y}", f"which number is {'bigger' if more else 'smaller'}: {x} or {y}"]), f"{max(x, y) if more else min(x, y)} is {'larger' if more else 'smaller'} than {min(x, y) if more else max(x, y)}."
        name, what = pick(r, W.NAMES), pick(r, W.FRUITS + ["coins", "books", "eggs", "stones", "pens", "cups"])
        x, y = r.randint(1, 30), r.randint(1, 30)
        if r.random() < 0.5:
            return f"{name} has {x} {what} and gets {y} more. How many {what} does {name} have", f"{name} has {x} + {y} = {x + y} {what}."
        x += y
        return f"{name} has {x} {what} and gives away {y}. How many {what} are left", f"There are {x} - {y} = {x - y} {what} left."

    # Stories.

    def story(self):
        r = self.r
        n = r.random()
        name = other = None
        if n < 0.12:
            subject = None
            question = pick(r, ["tell me a story", "can you tell me a story", "please tell me a story", "tell me a short story", "I want to hear a story", "a story, please", "do you know a story", "tell me a bedtime story", "story"])
        elif n < 0.55:
            subject = pick(r, W.ANIMALS if r.random() < 0.65 else W.PEOPLE)
            if r.random() < 0.35:
                name = pet(r, False)
                if r.random() < 0.25:
                    subject = pick(r, W.NOUNS) if r.random() < 0.6 else coined(r).lower()
            elif r.random() < 0.15:
                other = pick(r, W.ANIMALS + W.PEOPLE)
        elif n < 0.76:
            subject = pick(r, W.OBJECTS if r.random() < 0.3 else W.NOUNS if r.random() < 0.9 else [coined(r).lower()])
        elif n < 0.88:
            subject = pick(r, W.NATURE)
        elif n < 0.93:
            subject = pick(r, W.VIRTUES)
        else:
            subject, name = pick(r, ["girl", "boy", "child"]), person(r, False)
        if other == subject:
            other = None
        self.tale = tale = Tale(r, subject, name, other)
        if subject:
            kind = KINDS.get(subject, "thing")
            about = subject if kind == "virtue" else f"the {subject}" if kind == "nature" or r.random() < 0.12 else a(subject)
            if name and kind == "thing":
                kind = "hero"
            if kind == "hero" and r.random() < 0.1 and not name and not subject.endswith(("f", "s", "sh", "ch", "y", "x")):
                about = subject + "s"
            if subject in ("girl", "boy", "child") and name and r.random() < 0.6:
                about = name
            elif name:
                about += pick(r, [f" called {name}", f" named {name}", f" whose name is {name}"])
            if other:
                about += f" and {a(other)}"
            question = fill(r, pick(r, STORY_ASKING), dict(about=about))
        text = tale.text
        if r.random() < 0.2:
            text += "\n\n" + tale.more()
        if r.random() < 0.03:
            text = pick(r, ["Here is a story. ", "Gladly! ", "Here is a short story. "]) + text
        self.turn(typed(r, question, pick(r, ["."] * 3 + ["!", ""]) if not question.startswith(("can", "could", "do")) else "?"), text)
        if r.random() < 0.15:
            self.turn(typed(r, pick(r, ["go on", "what happened next", "and then", "please go on", "continue", "tell me more", "more", "what happened after that"]), pick(r, [".", "?"])), tale.more())
        while r.random() < 0.4:
            questions = tale.questions()
            if not questions:
                break
            question, answer = pick(r, questions)
            self.turn(ask(r, fill(r, question[:-1])), answer)
        if r.random() < 0.12:
            self.turn(typed(r, pick(r, ["that was a nice story", "thank you, I liked it", "what a nice story", "I like this story", "lovely"])), pick(r, ["I am glad that you liked it.", "Thank you! Would you like another one?", "I am glad. Shall I tell another one?"]))
            if r.random() < 0.5:
                subject = pick(r, W.ANIMALS if r.random() < 0.5 else W.OBJECTS if r.random() < 0.4 else W.NOUNS)
                self.tale = Tale(r, subject)
                self.turn(pick(r, [f"Yes, about {a(subject)}.", f"Yes, please, one about {a(subject)}.", f"Another one, about {a(subject)}."]), self.tale.text)

    # Small talk and what everybody knows.

    def chat(self):
        r, n = self.r, self.r.random()
        if n < 0.4:
            self.say(pick(r, K.SELF))
        elif n < 0.52:
            self.say((K.LIMITS, K.CANNOT))
        else:
            self.say(pick(r, K.CHAT))

    def known(self):
        r = self.r
        for _ in range(r.choice([1, 1, 2, 3])):
            question, answer = pick(r, KNOWN)
            self.turn(ask(r, fill(r, question)), answer)

    def task(self):
        r, n = self.r, self.r.random()
        if n < 0.2:
            x = r.randint(1, 20) if r.random() < 0.6 else 1
            y = x + r.randint(2, 9)
            question = f"count {'to ' + str(y) if x == 1 else f'from {x} to {y}'}"
            if r.random() < 0.2:
                return self.turn(typed(r, f"count backwards from {y} to {x}"), ", ".join(str(i) for i in range(y, x - 1, -1)) + ".")
            return self.turn(typed(r, question), ", ".join(str(i) for i in range(x, y + 1)) + ".")
        if n < 0.42:
            kind = pick(r, list(K.NAMEABLE))
            items = getattr(W, K.NAMEABLE[kind])
            count = r.randint(2, 5) if kind != "seasons" else r.randint(2, 4)
            some = r.sample(items, count)
            number_word = NUMERALS[count] if r.random() < 0.7 else str(count)
            return self.turn(typed(r, pick(r, [f"name {number_word} {kind}", f"tell me {number_word} {kind}", f"can you name {number_word} {kind}", f"give me {number_word} {kind}"])), cap(", ".join(some[:-1]) + " and " + some[-1]) + ".")
        if n < 0.62:
            subject = pick(r, W.ANIMALS + W.OBJECTS + ["moon", "sun", "river", "star"])
            x, y = pick(r, K.RHYMES)
            poem = fill(r, pick(r, K.POEMS[1:]), dict(s=subject))
            return self.turn(typed(r, pick(r, [f"write a poem about {a(subject)}", f"a poem about {a(subject)}, please", f"can you write a poem about {a(subject)}", f"tell me a poem about the {subject}", f"write a short poem about {a(subject)}"])), poem[0].upper() + poem[1:])
        if n < 0.72:
            name = coined(r) if r.random() < 0.3 else pick(r, W.NAMES)
            return self.turn(typed(r, pick(r, [f"say hello to {name}", f"greet my friend {name}", f"say hello to my friend {name}"])), f"Hello, {name}!")
        if n < 0.92:
            words = " ".join(pick(r, W.WILD) for _ in range(r.randint(1, 6)))
            if r.random() < 0.3:
                words = number(r)
            return self.turn(typed(r, pick(r, [f"repeat after me: {words}", f"say: {words}", f"repeat: {words}", f"please say \"{words}\""]), ""), cap(words) + ".")
        x, y = pick(r, K.RHYMES)
        self.turn(typed(r, pick(r, [f"what rhymes with {x}", f"tell me a word that rhymes with {x}", f"find a rhyme for {x}"]), "?"), f"{cap(y)} rhymes with {x}.")

    # Long texts, and questions on short ones.

    def reading(self):
        r = self.r
        if r.random() < 0.45:
            return self.comprehension()
        left = max(150, min(int((self.limit - self.size) * 3), 6000))
        text = pick(r, self.stories if r.random() < 0.6 else self.texts)
        size = r.randint(120, left)
        at = r.randint(0, max(0, len(text) - size))
        part = text[at : at + size]
        part = part[part.find(" ") + 1 : part.rfind(" ")].strip()
        if len(part) < 40:
            return
        question = pick(r, ["Read this", "Please read this", "Here is a text", "Listen", "I want to show you something", "Read the following text", "This is from a book", "Let me read something to you"])
        self.turn(f"{question}: {part}", pick(r, ["Thank you. I have read it.", "I have read it.", "Thank you for the text.", "I have read the text. What would you like to do now?"]))

    def comprehension(self):
        r = self.r
        people = r.sample(W.NAMES if r.random() < 0.6 else W.PROPER, r.randint(2, 4))
        where, has, lines = {}, {}, []
        for _ in range(r.randint(2, 6)):
            p = pick(r, people)
            n = r.random()
            if n < 0.6 or p not in where:
                where[p] = pick(r, W.ROOMS)
                lines.append(fill(r, "{p} [went to|is in|walked to|goes to|ran to|is now in] the {w}.", dict(p=p, w=where[p])))
            else:
                thing = pick(r, W.SMALL if r.random() < 0.6 else W.NOUNS)
                if thing in has.values():
                    continue
                has[p] = thing
                lines.append(f"{p} took the {thing}.")
        p = pick(r, list(where))
        if has and r.random() < 0.35:
            p = pick(r, list(has))
            question, answer = pick(r, [(f"Who has the {has[p]}?", f"{p} has the {has[p]}."), (f"What did {p} take?", f"{p} took the {has[p]}.")])
        else:
            question, answer = f"Where is {p}?", f"{p} is in the {where[p]}."
        self.turn(" ".join(lines) + " " + question, answer)
        if r.random() < 0.4:
            p = pick(r, list(where))
            self.turn(f"And where is {p}?", f"{p} is in the {where[p]}.")

    def strange(self):
        """Things that a small model does not understand."""
        r = self.r
        text = pick(r, self.texts)
        at = r.randint(0, len(text) - 400)
        found = re.findall(r"[A-Z][^.!?\n]{15,120}[.!?]", text[at : at + 600])
        if found:
            self.turn(pick(r, found), pick(r, ["I am not sure what you mean. I can tell you a story or remember something for you.", "I do not know much about that. I am only a small model.", "I am not sure that I understand.", "I see. Would you like to hear a story?", "That is interesting. Tell me more.", "I do not know what to say to that."]))


QUESTION_WORDS = set("what who how are do can which where when will is why whats what's does".split())
CHAT_HELLO = K.CHAT[0]
STORY_ASKING = ["tell me a story about {about}", "tell me a story about {about}", "tell me a story about {about}", "tell me a short story about {about}", "can you tell me a story about {about}", "please tell me a story about {about}", "a story about {about}, please", "I want to hear a story about {about}", "tell a story about {about}",
                "could you tell me a story about {about}", "write a story about {about}", "write a short story about {about}", "tell me about {about} in a story", "story about {about}", "I would like a story about {about}", "do you know a story about {about}", "[now |then |next, |]tell me [another|a new|one more] story about {about}", "tell me a [nice|funny|sad|happy|little|bedtime] story about {about}"]


def sum_question(r, x, y, sign):
    words = {"+": [f"{x} plus {y}", f"{x} and {y}"], "-": [f"{x} minus {y}"], "x": [f"{x} times {y}"]}[sign]
    e = f"{x} {sign if sign != 'x' else pick(r, ['x', '*'])} {y}"
    n = r.random()
    if n < 0.5:
        return pick(r, ["what is ", "what is ", "what's ", "how much is ", "calculate ", "compute ", "what do I get for ", "do you know what is ", ""]) + e
    if n < 0.85:
        return pick(r, ["what is ", "how much is ", "what's ", "tell me what is ", ""]) + pick(r, words)
    if sign == "+":
        return pick(r, [f"add {x} and {y}", f"what is the sum of {x} and {y}", f"{x}+{y}", f"can you add {x} and {y}"])
    if sign == "-":
        return pick(r, [f"subtract {y} from {x}", f"take {y} away from {x}", f"{x}-{y}"])
    return pick(r, [f"multiply {x} by {y}", f"{x}*{y}", f"what is the product of {x} and {y}"])


# Examinations: lists of (messages, what the answer must contain, what it must not).

def samples():
    return [["Hello! My name is Anita and my cat is called Mango.", "Tell me a story about a fox.", "What is my cat called?", "What is my name?", "What is 17 + 25?", "Actually, my cat is called Pixie.", "What is my cat's name?", "How old am I?"],
            ["Who are you?", "What can you do?", "Write me a program in C.", "Tell me a story about a panda named Bongo.", "What was the panda called?", "What is the opposite of hot?"],
            ["Tell me a story about the ocean.", "Another one, about a teapot.", "thanks", "what is 7 times 8", "tell me a joke"],
            ["My brother lives in Glasgow and my scooter is green.", "I like cooking. My lucky number is 4711.", "Tell me a short story about courage.", "What is my lucky number?", "Where does my brother live?", "What colour is my scooter?", "What do you know about me?", "What is my sister's name?"],
            ["Tell me a story about a raccoon and a panda.", "What happened next?", "Bye!"]]


def between(r, talker, packer, tokens, keys):
    """Conversation of so many tokens that tells nothing about `keys`."""
    out, size = [], 0
    while size < tokens:
        talker.messages, talker.size, talker.limit, talker.facts, talker.tale = [], 0, 400, {}, None
        r.choices([talker.story, talker.sums, talker.known, talker.reading, talker.chat], [5, 2, 2, 2 if tokens - size > 300 else 0, 2])[0]()
        if talker.messages:
            out += talker.messages
            size += sum(len(packer.ids(text)) + 5 for _, text in talker.messages)
    return out


def examination(packer, count):
    """Names of examinations and their cases."""
    r = random.Random(4242)
    talker = Talker(r, EXAM_TEXTS or ["word " * 400] * 3, EXAM_TEXTS or ["word " * 400] * 3)
    makers = [my_name, my_pet, relative, secret, favourite, fact]
    for distance in (0, 100, 500, 1500, 3000):
        cases = []
        for _ in range(count):
            f, g = pick(r, makers)(r, True), fact(r, True)
            messages = [("user", typed(r, pick(r, f.telling))), ("assistant", f"I will remember that {f.answer}.")]
            if g.key != f.key:
                messages += [("user", typed(r, pick(r, g.telling))), ("assistant", f"I will remember that {g.answer}.")]
            messages += between(r, talker, packer, distance, f.key)
            cases.append((messages + [("user", cap(pick(r, f.asking)) + "?")], [f.value], []))
        yield f"recall at {distance} tokens", cases
    cases = []
    while len(cases) < count:
        f, g = my_pet(r, True), my_pet(r, True)
        if f.key != g.key or f.value == g.value:
            continue
        messages = [("user", cap(f.telling[2]) + "."), ("assistant", f"I will remember that {f.answer}.")] + between(r, talker, packer, 150, "")
        messages += [("user", "Actually, " + g.telling[2] + "."), ("assistant", f"All right, {g.answer}.")] + between(r, talker, packer, 150, "")
        cases.append((messages + [("user", cap(pick(r, f.asking)) + "?")], [g.value], [f.value]))
    yield "corrections", cases
    cases = []
    while len(cases) < count:
        f, g = fact(r, True), fact(r, True)
        if f.key == g.key:
            continue
        messages = [("user", cap(pick(r, g.telling)) + "."), ("assistant", f"I will remember that {g.answer}.")]
        cases.append((messages + [("user", cap(f.asking[0]) + "?")], ["not told me"], []))
    yield "never told", cases
    pairs = [(x, y) for x in range(100) for y in range(100) if held_sum(x, y)]
    plus = [p for p in pairs if sum(p) <= 100]
    minus = [p for p in pairs if p[0] >= p[1]]
    yield "sums never seen", [([("user", f"What is {x} + {y}?")], [f"= {x + y}."], []) for x, y in r.sample(plus, min(len(plus), 2 * count))]
    yield "differences never seen", [([("user", f"What is {x} - {y}?")], [f"= {x - y}."], []) for x, y in r.sample(minus, min(len(minus), 2 * count))]
    yield "times table", [([("user", f"What is {x} x {y}?")], [f"= {x * y}."], []) for x in range(2, 13) for y in range(2, 13)][: 4 * count]
    subjects = W.HELD_ANIMALS + W.HELD_OBJECTS + W.HELD_NATURE
    yield "stories on subjects never seen", [([("user", f"Tell me a story about {a(subject)}.")], [subject], []) for subject in subjects]
    yield "known things", [([("user", cap(fill(r, q)) + "?")], [answer], []) for q, answer in r.sample(KNOWN, min(len(KNOWN), 2 * count))]


EXAM_TEXTS = []
