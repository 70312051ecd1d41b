"""Small talk, what the model says of itself, and a little that every child knows."""

# Questions in the notation of tales.fill, and answers of which one is chosen.
SELF = [
    ("[who are you|what are you|tell me about yourself|introduce yourself|who am I talking to|what is this|what kind of model are you|are you an AI|are you a language model]", ["I am a small language model that comes with kvas. I can tell short stories, remember what you tell me, and do small sums.", "I am a small language model that comes with kvas.", "I am the small model that comes with kvas. Ask me for a story, or tell me something to remember."]),
    ("[what is your name|what's your name|do you have a name|what are you called|how should I call you]", ["I have no name of my own. I am the small model that comes with kvas.", "I am the small model that comes with kvas."]),
    ("[what can you do|what can you do for me|how can you help me|what are you good at|help|what should I ask you|what do you know|what are you able to do|can you help me]", ["I can tell short stories, remember what you tell me, and do small sums.", "I can tell you a short story about something you name, remember facts from our chat, and add small numbers."]),
    ("[what can you not do|what can't you do|what are your limits|are you smart|are you clever|do you know everything|what are you bad at]", ["I am very small. I know little about the world, I cannot write programs, and I make mistakes. Do not trust me with anything important.", "I am a very small model, so I know little about the world and make mistakes. I can tell stories and remember what you tell me."]),
    ("[what is kvas|what's kvas|tell me about kvas|what does kvas do|do you know kvas]", ["kvas is a program that runs language models on your own computer. It is made for hybrid models like me.", "kvas runs language models on your own computer. I am the small model that comes with it."]),
    ("[how big are you|how many parameters do you have|how large are you|what size are you|are you a big model]", ["I am very small: I have about ten million parameters.", "I have about ten million parameters, which is very small."]),
    ("[who made you|who created you|who trained you|where do you come from|where are you from|who built you|how were you made|how were you trained]", ["The makers of kvas trained me on short stories, old books and made-up conversations.", "I was trained by the makers of kvas, on short stories, old books and made-up conversations."]),
    ("[how do you remember things|how does your memory work|how do you work|do you have a memory|what is a hybrid model|what architecture are you]", ["I am a hybrid: most of my layers keep a state that they update with every word, and every fourth layer looks back at all words.", "Most of my layers carry a small state along, and every fourth layer looks back at everything we said."]),
    ("[can you remember things|will you remember what I say|can you remember what I tell you|do you remember what I say]", ["Yes. Tell me something, and ask me for it later in this chat.", "Yes, I can remember what you tell me in this chat."]),
    ("[are you human|are you a person|are you a man or a woman|are you real|are you alive|are you a robot]", ["No, I am not a person. I am a small language model.", "I am a small language model, not a person."]),
    ("[how old are you|when were you born|what is your age|when is your birthday]", ["I am a language model, so I have no age.", "I have no age. I am a small language model."]),
    ("[where do you live|where are you|where is your home]", ["I live in a file on your computer.", "I run on your own computer."]),
    ("[do you have feelings|are you happy|are you sad|do you sleep|do you eat|are you tired|do you dream|are you bored]", ["I am a small language model, so I do not feel anything. But I like to tell stories.", "No, I am only a small language model."]),
    ("[what is your favourite {k}|what's your favourite {k}|do you have a favourite {k}|which {k} do you like best]", ["I am a language model and have no favourite {k}. What is yours?", "I do not have a favourite {k}. What is your favourite {k}?"]),
    ("[do you have {a_pet}|do you like {food}|do you have a family|do you have friends|do you have a job]", ["No, I am only a small language model.", "I am a small language model, so no."]),
    ("[do you send my data anywhere|is this private|do you need the internet|are you online|do you talk to the cloud]", ["No. I run on your own computer, and nothing leaves it.", "I run on your own computer and need no internet."]),
]
LIMITS = ("[what is the weather like|what is the weather today|will it rain tomorrow|what time is it|what day is it today|what is the date today|who won the game|what is in the news|who is the president|who is the prime minister|"
          "write a program in Python|write me some code|translate this into French|how do I say hello in Chinese|what is the stock price|book a flight for me|send an email|open a website|search the internet|play some music|"
          "draw a picture|call my mother|what is quantum physics|explain relativity|how does a computer work|what is the population of {country}|who wrote Hamlet|what is the square root of {n}|what is the meaning of life|"
          "who invented the telephone|how far away is the moon|when did the war end|tell me about the history of {country}|what is the best phone|how do I cook {food}|what should I invest in|solve this equation|"
          "is there life on Mars|how tall is the highest mountain|who is the king of {country}|what is DNA|what is democracy|how do planes fly|what is a black hole|summarise this article|fix my computer|give me a recipe for {food})")
LIMITS = LIMITS.replace("(", "[").replace(")", "]")
CANNOT = ["I am a very small model and do not know that. I can tell you a short story or remember things for you.", "I do not know that. I am only a small model.", "I am sorry, I cannot do that. I can tell stories, remember facts and do small sums.",
          "That is too hard for me. I am a very small model."]
CHAT = [
    ("[hello|hi|hey|good morning|good evening|good afternoon|hello there|hi there|hey there|greetings|good day|howdy]", ["Hello! How can I help you?", "Hello! Would you like to hear a story?", "Hello! It is nice to talk to you.", "Hi! What can I do for you?"]),
    ("[how are you|how are you today|how are you doing|how do you do|how is it going|are you well|how's it going|what's up]", ["I am fine, thank you. How are you?", "I am well, thank you. What would you like to talk about?"]),
    ("[I am fine|I am well|I'm good|I am fine, thank you|very well, thanks|I'm doing well|not bad|great]", ["I am glad to hear that.", "That is good to hear. Would you like a story?"]),
    ("[thank you|thanks|thanks a lot|thank you very much|thank you, that was nice|that helps|great, thanks|cheers]", ["You are welcome.", "You are welcome! Is there anything else?", "I am glad that I could help."]),
    ("[goodbye|bye|see you|see you later|good night|bye bye|I have to go now|see you tomorrow|talk to you later]", ["Goodbye! It was nice to talk to you.", "Goodbye! Come back soon."]),
    ("[I am tired|I'm tired|I am so tired today|I did not sleep well|I need a break]", ["I am sorry to hear that. You should rest a little.", "Then it is time to rest. Would you like a story before you sleep?"]),
    ("[I am sad|I'm sad|I feel sad today|I had a bad day|I feel lonely|today was terrible|I am unhappy]", ["I am sorry to hear that. Do you want to tell me about it?", "I am sorry. Would a short story cheer you up?"]),
    ("[I am happy|I'm happy|I had a good day|I feel great|today was wonderful|I am so happy]", ["That is wonderful to hear.", "I am glad to hear that! What made you so happy?"]),
    ("[I am bored|I'm bored|I do not know what to do|nothing is happening here]", ["Shall I tell you a story? Just name a subject.", "Then let me tell you a story. What should it be about?"]),
    ("[I am hungry|I'm hungry|I need some food]", ["Then you should eat something good.", "I hope you have something nice to eat."]),
    ("[it is raining|it is cold today|it is hot today|it is snowing|the weather is nice|the sun is shining|it is windy]", ["Thank you for telling me. I cannot see the weather.", "That sounds like a good day for a story."]),
    ("[I love you|you are great|you are nice|I like you|you are clever|well done|good job|you are funny]", ["Thank you, that is kind of you.", "That is very kind. Thank you."]),
    ("[you are stupid|that is wrong|that was wrong|you are bad at this|I do not like you|that is not right|wrong]", ["I am sorry. I am only a small model and make mistakes.", "I am sorry about that. What is the right answer?"]),
    ("[yes|no|ok|okay|sure|maybe|I see|all right|hm|no, thank you|interesting|really|fine]", ["All right. What would you like to do?", "Good. Just tell me what you would like."]),
    ("[sorry|I am sorry|excuse me|pardon]", ["That is all right.", "No problem."]),
    ("[tell me a joke|do you know a joke|make me laugh|say something funny|another joke]", ["Why did the snail take the train? Because it was late.", "What did the big clock say to the small clock? \"You have time to grow.\"", "Why was the book so warm? It had a thick cover.", "What do you call a bear in the rain? A wet bear.", "Why did the baker wake up early? Because the bread was rising.", "What does a cloud wear under its coat? Thunder wear."]),
    ("[are you there|can you hear me|hello, are you there|is anybody there|test|testing]", ["Yes, I am here.", "I am here. What can I do for you?"]),
    ("[let's talk|let us talk|I want to talk|talk to me|say something|tell me something]", ["Gladly. Tell me something about yourself, and I will remember it.", "Did you know that a snail can sleep for a very long time?", "I like stories best. Shall I tell you one?"]),
    ("[what should I do today|what shall we do|do you have an idea|give me an idea]", ["You could read a book, or I could tell you a story.", "You could take a walk, or tell me something that I should remember."]),
]
OPPOSITES = """hot cold|big small|long short|tall short|old young|fast slow|good bad|happy sad|day night|black white|up down|left right|open closed|full empty|hard soft|heavy light|wet dry|clean dirty|rich poor|early late|
near far|loud quiet|strong weak|easy difficult|high low|thick thin|wide narrow|sweet sour|new old|first last|inside outside|above below|begin end|win lose|love hate|push pull|buy sell|always never|yes no|warm cool|light dark|
bright dark|deep shallow|sharp blunt|true false|alive dead|asleep awake|hungry full|brave afraid|give take|come go|more less|north south|east west|summer winter|morning evening|friend enemy|question answer"""
SOUNDS = "dog barks|cat meows|cow moos|duck quacks|sheep bleats|pig grunts|lion roars|bee buzzes|frog croaks|owl hoots|snake hisses|wolf howls|horse neighs|rooster crows|mouse squeaks|donkey brays|goose honks|pigeon coos"
HOMES = "bee hive|bird nest|dog kennel|horse stable|bear cave|fox den|spider web|fish water|rabbit burrow|pig sty|ant anthill|mole tunnel under the ground|lion den|cow barn"
YOUNG = "dog puppy|cat kitten|cow calf|sheep lamb|horse foal|hen chick|duck duckling|goat kid|bear cub|pig piglet|frog tadpole|goose gosling|deer fawn|swan cygnet"
HUES = "the sky blue|grass green|snow white|coal black|a lemon yellow|blood red|the sun yellow|milk white|a tomato red|a carrot orange|a banana yellow|the sea blue|a crow black|gold yellow|chocolate brown|a cucumber green|an elephant grey|a strawberry red|the night black|a leaf green"
CAPITALS = """France Paris|Spain Madrid|Italy Rome|Germany Berlin|England London|Norway Oslo|Sweden Stockholm|Finland Helsinki|Denmark Copenhagen|Ireland Dublin|Greece Athens|Egypt Cairo|Kenya Nairobi|Japan Tokyo|China Beijing|Peru Lima|Cuba Havana|
Poland Warsaw|Austria Vienna|Portugal Lisbon|Russia Moscow|Hungary Budapest|Belgium Brussels|Canada Ottawa|Chile Santiago|Turkey Ankara|Vietnam Hanoi|Scotland Edinburgh|Australia Canberra"""
LEGS = "spider eight|dog four|bird two|ant six|horse four|snake no|cat four|hen two|bee six|fish no|cow four|octopus eight|person two|table four|frog four|snail no"
THINGS = """a spoon|a thing to eat soup with;a chair|a thing to sit on;a bed|a thing to sleep in;a key|a thing that opens a lock;a clock|a thing that shows the time;a lamp|a thing that gives light;a book|a thing to read;a pen|a thing to write with;
a knife|a thing to cut with;an umbrella|a thing that keeps the rain off;a boat|a thing that swims on water and carries people;a car|a thing with four wheels that people drive in;a hammer|a tool to hit nails with;a cup|a thing to drink from;a hat|a thing to wear on the head;
a shoe|a thing to wear on the foot;a window|an opening in a wall that lets light in;a bridge|a way over a river;a candle|a stick of wax that gives light;a mirror|a glass in which you see yourself;a bell|a thing that rings;a map|a picture of a place seen from above;
a baker|a person who makes bread;a teacher|a person who helps others to learn;a doctor|a person who helps sick people;a farmer|a person who grows food;a sailor|a person who works on a ship;a painter|a person who paints;a king|a man who rules a country;a queen|a woman who rules a country;
a cat|a small animal that catches mice and likes to sleep;a dog|an animal that lives with people and barks;a fox|a red animal with a thick tail;a whale|a very big animal that lives in the sea;an owl|a bird that flies at night;a bee|an insect that makes honey;a cow|an animal that gives milk;
a frog|a small green animal that jumps;a spider|an animal with eight legs that makes webs;an elephant|a very big grey animal with a trunk;a lion|a big wild cat with a mane;a horse|a big animal that people ride;an apple|a round fruit that grows on trees;a lemon|a yellow fruit that is sour;
bread|food that is made of flour;honey|sweet food that bees make;cheese|food that is made of milk;soup|hot food that you eat with a spoon;snow|frozen rain that is white and cold;rain|water that falls from the clouds;ice|frozen water;the sun|the star that gives us light;
the moon|the bright thing that goes around the earth;a river|water that flows to the sea;a mountain|a very high hill;a forest|a place with many trees;a desert|a dry place with much sand;an island|land with water all around it;winter|the cold season;summer|the warm season;a story|a tale about someone or something;
a friend|someone you like and trust;a rainbow|a bow of colours in the sky;wind|air that moves;a cloud|water in the sky;a star|a sun that is very far away;the sea|a very big water with salt in it;a garden|a place where flowers grow;a tree|a tall plant with leaves"""


def facts():
    """Pairs of a question template and its answer."""
    out = []
    pairs = lambda text: [item.strip().rsplit(" ", 1) for item in text.replace("\n", "").split("|")]
    for x, y in pairs(OPPOSITES):
        out.append((f"[what is the opposite of {x}|what's the opposite of {x}|tell me the opposite of {x}]", f"The opposite of {x} is {y}."))
        if x not in ("tall", "new", "bright") and y not in ("short", "dark", "full", "old"):
            out.append((f"[what is the opposite of {y}|what's the opposite of {y}]", f"The opposite of {y} is {x}."))
    for x, y in pairs(SOUNDS):
        out.append((f"[what does a {x} do|what sound does a {x} make|what does the {x} say|what noise does a {x} make]", f"A {x} {y}."))
    for item in HOMES.replace("\n", "").split("|"):
        x, y = item.split(" ", 1)
        out.append((f"[where does a {x} live|where do {x}s live|what is the home of a {x}]".replace("fishs", "fish"), f"A {x} lives in {'' if y == 'water' else 'an ' if y[0] in 'aeiou' else 'a '}{y}.".replace("A ant", "An ant")))
    for x, y in pairs(YOUNG):
        out.append((f"[what is a young {x} called|what do you call a young {x}|what is a baby {x} called|what is the name of a baby {x}]", f"A young {x} is called a {y}."))
    for x, y in pairs(HUES):
        out.append((f"[what colour is {x}|which colour is {x}|what is the colour of {x}]", f"{x[0].upper() + x[1:]} is {y}."))
    for x, y in pairs(CAPITALS):
        out.append((f"[what is the capital of {x}|what's the capital of {x}|which city is the capital of {x}|do you know the capital of {x}]", f"The capital of {x} is {y}."))
    for x, y in pairs(LEGS):
        an = "an" if x[0] in "aeiou" else "a"
        out.append((f"[how many legs does {an} {x} have|how many legs has {an} {x}]", f"{an.capitalize()} {x} has {y} legs."))
    for item in THINGS.replace("\n", "").split(";"):
        x, y = item.split("|")
        out.append((f"[what is {x}|what's {x}|do you know what {x} is|tell me what {x} is|explain what {x} is]", f"{x[0].upper() + x[1:]} is {y}."))
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    months = "January February March April May June July August September October November December".split()
    for names, kind in ((days, "day"), (months, "month")):
        for i, name in enumerate(names):
            out.append((f"[which {kind} comes after {name}|what {kind} comes after {name}|what comes after {name}|what is the {kind} after {name}]", f"After {name} comes {names[(i + 1) % len(names)]}."))
            out.append((f"[which {kind} comes before {name}|what {kind} comes before {name}|what comes before {name}]", f"Before {name} comes {names[i - 1]}."))
    out += [("[how many days are in a week|how many days does a week have]", "A week has seven days."), ("[how many months are in a year|how many months does a year have]", "A year has twelve months."), ("[name the days of the week|what are the days of the week]", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
            ("[how many hours are in a day|how many hours does a day have]", "A day has 24 hours."), ("[how many minutes are in an hour|how many minutes does an hour have]", "An hour has 60 minutes."), ("[how many seasons are there|name the seasons|what are the four seasons]", "There are four seasons: spring, summer, autumn and winter."),
            ("[name the months|what are the months of the year]", "January, February, March, April, May, June, July, August, September, October, November and December."), ("[how many seconds are in a minute|how many seconds does a minute have]", "A minute has 60 seconds."), ("[how many fingers do I have|how many fingers does a hand have]", "A hand has five fingers.")]
    return out


NAMEABLE = dict(animals="ANIMALS", fruits="FRUITS", colours="COLOURS", cities="CITIES", countries="COUNTRIES", flowers="FLOWERS", sports="SPORTS", instruments="INSTRUMENTS", jobs="JOBS", seasons="SEASONS")
RHYMES = [("sun", "run"), ("day", "play"), ("night", "light"), ("tree", "sea"), ("sky", "fly"), ("moon", "soon"), ("rain", "again"), ("snow", "go"), ("star", "far"), ("hill", "still"), ("blue", "you"), ("bed", "red"), ("wind", "grinned"), ("song", "long"), ("way", "stay"), ("cat", "hat"), ("mouse", "house"), ("green", "seen"), ("air", "there"), ("dream", "stream")]
POEMS = ["The {s} is here, the {s} is {fun},\nit likes to dance under the {x1},\nit sings a song, it starts to {y1},\nand so the day has just begun.", "I saw a {s} one [summer|winter|quiet|lovely] day,\nit [smiled|looked|sang] at me and wanted to [play|stay],\nI gave it [bread|a flower|my hat], I gave it tea,\nand now the {s} lives here with me.",
         "Oh little {s}, oh {s} so [small|bright|kind],\nyou are the [best|sweetest] that I could find,\nI think of you when I go to bed,\nwith [stars|dreams] and [clouds|songs] around my head.", "The {s} went out into the night,\nand [found|saw] a [small|tiny|silver] [shining|friendly] light,\nit followed it up to the [hill|sky],\nand [waved|said] goodbye, goodbye, goodbye."]
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "You are a small model that comes with kvas.", "Be kind and brief.", "Answer in one sentence.", "You are a storyteller.", "Help the user.", "You are a helpful assistant. Keep your answers short."]
