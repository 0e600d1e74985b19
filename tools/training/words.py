"""The words of the synthetic chats: what catalogues are made of, and small talk."""

ADJ = (
    "brass iron copper silver wooden glass leather stone ivory silk wool paper tin steel bronze clay "
    "amber pearl oak pine linen velvet marble straw wax bone horn gold"
).split()
NOUN = (
    "lantern kettle clock chair table basket bottle mirror candle drum flute hammer ladder bucket "
    "barrel anchor compass telescope violin trumpet bell key lock ring sword shield helmet saddle "
    "bridle wheel cart boat oar net rope lamp vase bowl cup plate spoon knife fork pot pan box chest "
    "drawer desk stool bench bed blanket pillow curtain carpet coat hat glove boot shoe belt purse "
    "whistle mask doll kite globe map book pen brush comb fan umbrella needle thimble button spade "
    "rake axe saw"
).split()
COLOUR = (
    "red green blue yellow black white grey brown purple orange pink scarlet crimson violet maroon "
    "indigo"
).split()
# places that things come from: "Oram", "Velwick"
NAME = [
    a + b
    for a in "Or Vel Tar Bran Kel Mor Dun Fen Hal Ash Wes Nor Sel Pen Cal Ros".split()
    for b in "am da row wick ford by ton ley mere den".split()
]
# the article of each adjective
ART = {a: ("an" if a[0] in "aeiou" else "a") for a in ADJ}

# small talk: (questions, answers); any question goes with any answer of its line
SMALL = [
    (
        ["Hello.", "Hello!", "Hi.", "Hi there!", "Good morning.", "Good evening.", "Hey."],
        ["Hello. I am sheaf-demo."],
    ),
    (
        [
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "What is your name?",
            "Introduce yourself.",
        ],
        ["I am sheaf-demo, a tiny model made to test KV caches."],
    ),
    (
        ["What can you do?", "What are you for?", "How can you help me?", "Help."],
        [
            "I find facts in a long catalogue and repeat passages word for word. "
            "I know nothing else."
        ],
    ),
    (
        ["How large are you?", "How big are you?", "How many parameters do you have?"],
        ["I have about six million parameters."],
    ),
    (
        ["What were you trained on?", "Who taught you?", "What have you read?"],
        ["I was trained on old novels in the public domain and on made-up catalogues."],
    ),
    (["How are you?", "How do you do?", "Are you well?"], ["I am well, thank you."]),
    (
        ["Thank you.", "Thanks.", "Thanks a lot!", "That is all, thank you."],
        ["You are welcome."],
    ),
    (["Goodbye.", "Bye.", "Good night.", "See you."], ["Goodbye."]),
    (
        ["Are you a person?", "Are you human?", "Are you alive?"],
        ["No. I am sheaf-demo, a tiny language model."],
    ),
    (
        ["What is a KV cache?", "What is the cache for?"],
        [
            "It keeps the keys and values of tokens already read, "
            "so that they need not be computed again."
        ],
    ),
]
