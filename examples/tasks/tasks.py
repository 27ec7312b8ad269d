"""Small tasks of different kinds, generated from a seed, for measuring the service's default settings.

Each gives rows of `{"messages":[user, assistant]}` with one right answer, so that the score is a share of exact
answers.
"""

import json
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).parents[1]

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
UNITS = {
    "m": ["metres", "meters", "m"],
    "kg": ["kilos", "kilograms", "kg"],
    "l": ["litres", "liters", "l"],
    "s": ["seconds", "s", "sec"],
}
THINGS = ["rope", "flour", "oil", "cable", "sand", "water", "timber", "paint"]


def row(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def tickets(rows: int, seed: int) -> tuple[list[dict], list[dict]]:
    """The demo's task with another seed: JSON of three fields. The validation rows use phrasings that no training row
    has.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = [str(EXAMPLES.parent / "scripts/node"), str(EXAMPLES / "generate-ticket-triage.ts")]
        subprocess.run([*program, "--seed", str(seed), "--rows", str(rows), "--out", folder], check=True)
        read = [(Path(folder) / f"ticket-triage{part}.jsonl").read_text().splitlines() for part in ("", ".heldout")]
    return tuple([json.loads(line) for line in lines] for lines in read)


def normalise(draw: random.Random) -> dict:
    """Normalizes dates and quantities as people write them: `2026-03-07 12.5 kg`."""
    year, month, day = draw.randint(2019, 2031), draw.randint(1, 12), draw.randint(1, 28)
    name, short = MONTHS[month - 1], MONTHS[month - 1][:3]
    date = draw.choice(
        [
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{day:02}.{month:02}.{year}",
            f"{short} {day} {year}",
            f"{day}/{short}/{year}",
        ]
    )
    unit = draw.choice(list(UNITS))
    whole, tenth = draw.randint(1, 950), draw.randint(1, 9)
    amount, shown = (
        (f"{whole}.{tenth}", draw.choice([f"{whole}.{tenth}", f"{whole},{tenth}"]))
        if draw.random() < 0.5
        else (whole, whole)
    )
    word, thing = draw.choice(UNITS[unit]), draw.choice(THINGS)
    text = draw.choice(
        [
            "On {d} we need {q} of {t}.",
            "{q} of {t}, {d}",
            "Send {q} {t} by {d}.",
            "{d}: {t}, {q}",
            "Order: {t} ({q}) for {d}",
        ]
    )
    return row(text.format(d=date, q=f"{shown} {word}", t=thing), f"{year}-{month:02}-{day:02} {amount} {unit}")


FEELINGS = {
    "joy": [
        "I could dance",
        "what a wonderful {t}",
        "the {t} made my whole week",
        "I am over the moon about the {t}",
        "best {t} ever",
    ],
    "anger": [
        "I have had enough of this {t}",
        "the {t} makes my blood boil",
        "how dare they call this a {t}",
        "never again this {t}",
    ],
    "fear": [
        "I dread the {t}",
        "the {t} keeps me awake at night",
        "what if the {t} goes wrong",
        "my hands shake before every {t}",
    ],
    "sadness": [
        "I miss the old {t}",
        "the {t} left me in tears",
        "nothing is the same since the {t}",
        "my heart is heavy after the {t}",
    ],
    "boredom": [
        "the {t} went on and on",
        "I nearly fell asleep at the {t}",
        "another {t}, same as always",
        "I kept looking at my watch in the {t}",
    ],
}
SUBJECTS = [
    "meeting",
    "concert",
    "exam",
    "party",
    "flight",
    "holiday",
    "lesson",
    "interview",
    "film",
    "match",
    "dinner",
    "wedding",
]
FILLERS = [
    "honestly",
    "well",
    "to tell the truth",
    "as I said",
    "you know",
    "once more",
    "after all",
    "this morning",
    "again",
]


def feelings(draw: random.Random) -> dict:
    """Classifies a sentence."""
    label = draw.choice(list(FEELINGS))
    text = draw.choice(FEELINGS[label]).format(t=draw.choice(SUBJECTS))
    filler = draw.choice(FILLERS)
    text = draw.choice([f"{filler}, {text}", f"{text}, {filler}", f"{text}.", f"{text}!", text])
    return row(text[0].upper() + text[1:], label)


ACTS = ["close", "open", "check", "clean", "lock", "replace", "inspect", "label", "move", "count", "return", "repair"]
OBJECTS = ["door", "window", "valve", "filter", "cabinet", "printer", "engine", "shelf", "gate", "pump", "lamp", "tank"]
PLACES = ["kitchen", "workshop", "hall", "office", "cellar", "laboratory", "garage", "store room"]
POLITE = [
    "Would you be so kind as to {a} the {o} in the {p}{w}?",
    "It would be appreciated if somebody could {a} the {o} in the {p}{w}.",
    "I was wondering whether you might {a} the {o} of the {p}{w}.",
    "We kindly ask all staff to {a} the {p}'s {o}{w}.",
    "In the {p}, the {o} is something that you ought to {a}{w}, if at all possible.",
]
WHEN = [
    ("", ""),
    (" before six o'clock", " by 6"),
    (" every morning", " daily"),
    (" once a week", " weekly"),
    (" after use", " after use"),
]


def commands(draw: random.Random) -> dict:
    """Rewrites a polite request as a short command: a change of style with its own rules."""
    act, thing, place = draw.choice(ACTS), draw.choice(OBJECTS), draw.choice(PLACES)
    long, short = draw.choice(WHEN)
    return row(
        draw.choice(POLITE).format(a=act, o=thing, p=place, w=long), f"{act.capitalize()} {place} {thing}{short}!"
    )


def _drawn(make: Callable[[random.Random], dict]) -> Callable[[int, int], tuple[list[dict], list[dict]]]:
    def rows_of(rows: int, seed: int) -> tuple[list[dict], list[dict]]:
        draw = random.Random(seed)
        made: dict[str, dict] = {}
        while len(made) < rows + 100:
            new = make(draw)
            made[new["messages"][0]["content"]] = new
        return list(made.values())[:rows], list(made.values())[rows:]

    return rows_of


TASKS: dict[str, Callable[[int, int], tuple[list[dict], list[dict]]]] = {
    "tickets": tickets,
    "normalise": _drawn(normalise),
    "feelings": _drawn(feelings),
    "commands": _drawn(commands),
}
