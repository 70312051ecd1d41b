"""The words that generated conversations are made of. HELD_* occur in examinations only, or nowhere in such a place."""

import json

NAMES = """Ada Adam Agnes Alan Albert Alex Alice Alma Amelia Amir Amy Ana Andrea Andrew Angela Anna Anton Arjun Arthur Asha Astrid Aya Barbara
Basil Bea Ben Bella Beth Bill Bob Boris Brian Bruno Cara Carla Carlos Carmen Carol Cecil Charles Chloe Chris Clara Claire Clara Conrad Cora Dan
Dana Daniel Daria David Dawn Deepa Dennis Diana Diego Dora Doris Dylan Edgar Edith Edward Ela Elena Eli Elise Ella Elsa Emil Emily Emma Eric
Erik Esther Ethan Eva Evan Eve Fatima Felix Fiona Flora Florian Frank Fred Frida Gabriel George Gina Gita Grace Greta Guido Gus Hana Hanna
Harold Harry Hassan Hazel Helen Henry Hugo Ian Ida Igor Ines Ingrid Irene Iris Isaac Isla Ivan Ivy Jack Jacob Jade James Jan Jana Jane Jean
Jenny Jill Joan Joe Johan John Jonas Jose Joseph Josie Juan Judy Julia Julie June Kai Karen Karim Karl Kate Kenji Kim Kira Klaus Laila Lars
Laura Lea Lena Leo Leon Lily Linda Lisa Liv Lola Louis Louise Lucas Lucy Luis Luke Luna Lydia Maja Marco Margaret Maria Marie Mark Marta
Martin Mary Max Maya Mei Mia Michael Mila Milo Mina Miriam Mira Moses Nadia Nancy Nate Nell Nick Nico Nils Nina Noah Noel Nora Oliver Olga
Oscar Otto Owen Paul Pedro Penny Peter Petra Philip Pia Priya Rachel Rahul Ralph Ravi Rebecca Rita Robert Robin Rosa Rose Ruth Sally Sam
Samir Samuel Sandra Sara Sarah Sean Selma Simon Sofia Sonia Stella Stefan Steve Sue Susan Sven Tara Ted Teresa Theo Thomas Tilda Tim Tina
Tom Toni Ursula Vera Victor Viola Walter Wendy Will Yara Yuki Yusuf Zara Zoe""".split()
# Of these; the others are women's.
MEN = """Adam Alan Albert Alex Amir Andrew Anton Arjun Arthur Basil Ben Bill Bob Boris Brian Bruno Carlos Cecil Charles Chris Conrad Dan Daniel David Dennis
Diego Dylan Edgar Edward Eli Emil Eric Erik Ethan Evan Felix Florian Frank Fred Gabriel George Guido Gus Harold Harry Hassan Henry Hugo Ian Igor Isaac
Ivan Jack Jacob James Jan Joe Johan John Jonas Jose Joseph Juan Kai Karim Karl Kenji Klaus Lars Leo Leon Louis Lucas Luis Luke Marco Mark Martin Max
Michael Milo Moses Nate Nick Nico Nils Noah Noel Oliver Oscar Otto Owen Paul Pedro Peter Philip Rahul Ralph Ravi Robert Robin Sam Samir Samuel Sean
Simon Stefan Steve Sven Ted Theo Thomas Tim Tom Toni Victor Walter Will Yusuf""".split()
HELD_NAMES = """Anita Bernard Camille Dorothy Elliot Farah Gerald Hilda Imran Joanna Kofi Lorenzo Magnus Naomi Omar Paula Quentin Rosalind Sigrid
Tobias Umberto Violet Wilma Xenia Yvonne Zeno Bridget Casper Delia Edmund""".split()
HELD_MEN = "Bernard Elliot Gerald Imran Kofi Lorenzo Magnus Omar Quentin Tobias Umberto Zeno Casper Edmund".split()
SYLLABLES = "ba be bi bo da de do fa fi ga go ha ka ki ko la le li lo lu ma me mi mo na ne ni no pa pe po ra re ri ro sa se si so ta te ti to va vi wa ya za zo".split()
ENDINGS = "n r l s na ra la th m x ck nd lin ren son bel mar vik dor".split()
PETS = """Momo Rex Bella Coco Lucky Milo Simba Shadow Spot Fluffy Ginger Pepper Biscuit Rocky Daisy Smokey Tiger Snowy Patch Buddy Honey Cookie
Misty Muffin Oreo Paws Poppy Pumpkin Ruby Sandy Scout Socks Sunny Teddy Toffee Whiskers Ziggy Bubbles Pip Nibbles Bruno Felix Luna Max Bandit
Cleo Domino Echo Fudge Gizmo Hazel Jasper Kiki Maple Nemo Olive Peanut Rusty Sparky Waffles Button Clover Dot Blue Star""".split()
HELD_PETS = "Mango Trixie Bongo Caramel Dusty Hobbes Jellybean Noodle Pixie Truffle Zorro Mittens Rascal Pebbles Turbo".split()
COLOURS = "red blue green yellow white black brown orange purple pink grey golden silver turquoise violet".split()
CITIES = """Paris London Rome Berlin Madrid Lisbon Vienna Prague Oslo Stockholm Helsinki Copenhagen Dublin Athens Cairo Nairobi Lagos Delhi Mumbai
Tokyo Kyoto Osaka Seoul Beijing Shanghai Sydney Perth Lima Quito Bogota Santiago Havana Boston Chicago Denver Austin Seattle Toronto Montreal
Vancouver Warsaw Zurich Geneva Milan Naples Turin Munich Hamburg Cologne Brussels Amsterdam Bergen Riga Tallinn Tunis Dakar Accra Jakarta Hanoi""".split()
HELD_CITIES = "Glasgow Budapest Lyon Porto Krakow Bristol Manila Dallas Sofia Basel Antwerp Casablanca Bilbao Leeds".split()
COUNTRIES = """France Spain Italy Germany Norway Sweden Finland Denmark Ireland Greece Egypt Kenya India Japan Korea China Australia Peru Chile Cuba
Canada Poland Switzerland Austria Portugal Brazil Mexico Morocco Turkey Iceland""".split()
JOBS = """teacher baker doctor nurse farmer cook painter singer writer gardener carpenter driver pilot sailor tailor plumber dentist lawyer
librarian photographer musician engineer student postman waiter shepherd clockmaker mechanic programmer dancer fisherman""".split()
FOODS = """pizza soup pasta rice bread cheese pancakes porridge noodles salad beans potatoes eggs toast fish curry cake pie sushi waffles dumplings
stew yoghurt chocolate cookies tomatoes carrots mushrooms corn pudding""".split()
FRUITS = "apples pears plums cherries grapes peaches lemons oranges bananas figs mangos melons strawberries raspberries blueberries".split()
DRINKS = "tea coffee milk water cocoa lemonade juice".split() + ["apple juice", "orange juice", "green tea", "ginger beer"]
SPORTS = "football tennis swimming running cycling chess basketball hockey rowing skiing climbing golf volleyball badminton".split()
HOBBIES = """reading painting singing dancing cooking gardening fishing hiking swimming drawing baking knitting cycling sailing running
sewing""".split() + ["playing chess", "playing the piano", "collecting stamps", "taking photos", "watching birds", "building models", "riding horses"]
SEASONS = "spring summer autumn winter".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
FLOWERS = "roses tulips daisies lilies sunflowers violets poppies orchids daffodils".split()
INSTRUMENTS = "piano violin guitar flute drums cello trumpet harp organ clarinet".split()
SUBJECTS = "maths history music art science English French geography".split()
PET_KINDS = "cat dog rabbit hamster parrot horse goldfish turtle canary mouse pony lizard goat hen duck snake".split()
RELATIVES = """brother sister mother father friend neighbour teacher wife husband son daughter boss cousin grandmother grandfather uncle aunt
nephew niece dentist doctor""".split() + ["best friend", "little brother", "little sister", "older brother", "older sister", "flatmate"]
THINGS = """car bike house hat coat bag umbrella scarf boat door chair sofa phone cup lamp notebook shirt jacket suitcase tent kite pen
bicycle kitchen garage fence mug towel blanket ring guitar van truck desk backpack wallet""".split()
HELD_THINGS = "scooter kettle curtain helmet violin skateboard vase tractor".split()
SMALL = """key book ball ring letter cup coin hat phone wallet map watch spoon candle knife pencil ticket glove lamp doll camera passport
umbrella comb bottle scarf torch notebook basket whistle""".split()
HELD_SMALL = "compass ribbon hammer marble lantern brush stamp".split()
SPOTS = ["in the drawer", "on the table", "under the bed", "in the kitchen", "on the shelf", "in the garden", "behind the door", "in the car",
         "under the sofa", "in the box", "on the chair", "in the bag", "in the cellar", "on the roof", "in the attic", "next to the lamp",
         "in the cupboard", "on the desk", "in the bathroom", "under the pillow", "in the garage", "on the piano", "behind the clock",
         "in the basket", "near the window", "in my coat"]
ROOMS = "kitchen garden bedroom bathroom hall office cellar attic garage school park library market forest".split()
WORDS = """apple river stone cloud lantern silver maple falcon copper meadow winter thunder pepper ocean violet candle forest anchor marble
feather rocket button castle dragon garden hammer island jungle kitten ladder mirror needle orange pebble pillow rabbit saddle tiger tulip
velvet walnut window yellow zebra acorn basket canyon desert engine""".split()
HELD_WORDS = "heron crystal biscuit glacier tangerine puzzle cactus harbour sparrow mustard".split()
EVENTS = """party exam wedding interview concert holiday flight trip appointment meeting lesson picnic race dinner visit""".split()
VEHICLES = "train bus plane ferry".split()

# Heroes of stories: kinds, what they are called by, whether they are things that a hero finds, or places and weathers.
ANIMALS = """fox cat dog bear rabbit mouse owl horse cow pig hen duck goose frog turtle hedgehog squirrel wolf lion tiger elephant monkey giraffe
zebra kangaroo penguin whale dolphin seal crab fish snail bee butterfly ant spider ladybird sparrow crow swan donkey goat sheep lamb pony
kitten puppy mole badger beaver otter deer parrot crocodile camel dragon bat worm robin lizard octopus""".split()
ANIMALS += """ape antelope bison boar buffalo bull calf cheetah chicken chipmunk cobra cockatoo colt cricket crane cub cuckoo dove dragonfly eel falcon
fawn ferret finch firefly flamingo fly foal gazelle gecko gerbil gnat gnome goldfish gorilla grasshopper guinea-pig gull hamster hare hawk
ibis iguana jackal jaguar jay jellyfish kingfisher kiwi koala ladybug lark lemur leopard llama lobster lynx magpie mammoth meerkat mole-rat
moose mosquito moth mule newt nightingale opossum orangutan oyster panther partridge pelican pheasant pigeon piglet porcupine prawn quail
ram rat raven reindeer rhino rooster salamander salmon scorpion shark shrew shrimp skunk sloth slug squid starfish swallow tadpole termite
toad tortoise toucan trout tuna turkey unicorn viper vulture wasp wombat woodpecker yak elf dwarf ogre goblin""".split()
HELD_ANIMALS = "panda raccoon hippo peacock stork weasel walrus eagle".split()
PEOPLE = """girl boy king queen prince princess baker farmer sailor fisherman shepherd knight teacher gardener painter carpenter miller witch
wizard giant clown cook doctor tailor postman pirate robot ghost fairy troll snowman grandmother grandfather musician clockmaker hunter
child woman man""".split()
HELD_PEOPLE = "astronaut blacksmith lighthouse-keeper juggler nurse mermaid".split()
OBJECTS = """lamp key boat ball kite book hat clock umbrella drum bell ring cup spoon stone shell feather box balloon bicycle train
pencil mirror blanket star coin letter map flute doll apple pumpkin cake carrot nut egg seed tree flower rose button bottle candle wheel
shoe basket coat violin sock leaf bucket ladder toy lantern guitar crown""".split()
HELD_OBJECTS = "compass pancake teapot scooter marble telescope ribbon whistle".split()
NATURE = ["sea", "moon", "sun", "forest", "river", "mountain", "wind", "rain", "snow", "desert", "garden", "island", "lake", "night sky", "storm",
          "rainbow", "city", "village", "castle", "farm", "school", "market", "beach", "valley", "cave", "winter", "spring", "autumn", "summer",
          "old house", "lighthouse", "mill", "bridge", "meadow", "jungle", "waterfall"]
HELD_NATURE = ["volcano", "swamp", "harbour", "windmill", "ocean", "library"]
VIRTUES = ["friendship", "courage", "kindness", "sharing", "patience", "honesty", "helping others", "being brave", "trying again", "saying sorry", "love", "hope"]

WOMEN = sorted(set(NAMES) - set(MEN))
HELD_WOMEN = sorted(set(HELD_NAMES) - set(HELD_MEN))

# Names of heroes and of their friends have nothing in common, so that the two are never mixed up.
HERO_PETS, FRIEND_PETS = PETS[::2], PETS[1::2]
HERO_MEN, FRIEND_MEN = [n for n in MEN if n not in PETS][::2], [n for n in MEN if n not in PETS][1::2]
HERO_WOMEN, FRIEND_WOMEN = [n for n in WOMEN if n not in PETS][::2], [n for n in WOMEN if n not in PETS][1::2]

# Words of the texts; see lexicon.py.
NOUNS, WILD, PROPER = OBJECTS, WORDS, NAMES


def load(folder):
    """Takes the words that lexicon.py found."""
    global NOUNS, WILD, PROPER
    with open(f"{folder}/lexicon.json") as f:
        found = json.load(f)
    NOUNS, WILD, PROPER = found["nouns"], found["words"], found["names"]
