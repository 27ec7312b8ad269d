// Three tasks that small models are tuned for, made from a seed: extraction to JSON, classification with a reason,
// rewriting. Rows of different seeds share phrasings, as a customer's do, but no whole text.
import { seededRandom } from '../../tests/support/random.ts'

export interface TaskRow {
  messages: { role: 'system' | 'user' | 'assistant'; content: string }[]
}
export type TaskName = 'extraction' | 'classification' | 'rewriting'

type Draw = ReturnType<typeof drawing>
const drawing = (seed: number) => {
  const next = seededRandom(seed)
  const int = (below: number) => Math.floor(next() * below)
  return { int, chance: (share: number) => next() < share, of: <T>(list: readonly T[]): T => list[int(list.length)]! }
}

const first = (
  'Ana Ben Chloe Dmitri Elena Farid Greta Hugo Ines Jonas Kira Leo Mina Noah Olga Pavel Rosa Sven Tara Umar Vera Wim ' +
  'Yara Zoe'
).split(' ')
const last = (
  'Aalto Becker Costa Duarte Eriksen Fischer Garcia Hansen Ivanova Jansen Keller Lopez Moreau Novak Okafor Petrov ' +
  'Quinn Rossi Silva Tanaka Ueda Varga Weber Young'
).split(' ')
const cities = (
  'Antwerp Bergen Cork Dresden Essen Florence Ghent Haarlem Izmir Jena Krakow Lyon Malaga Nantes Oslo Porto Quimper ' +
  'Riga Seville Turin Utrecht Vienna Warsaw Zagreb'
).split(' ')
const items = [
  'standing desk',
  'office chair',
  'monitor arm',
  'desk lamp',
  'filing cabinet',
  'whiteboard',
  'footrest',
  'keyboard tray',
  'cable box',
  'bookshelf',
  'meeting table',
  'coat stand',
  'laptop dock',
  'noise panel',
  'plant stand',
  'printer table',
]
const colours = ['white', 'black', 'oak', 'walnut', 'grey', 'blue']
const plans = ['Starter', 'Team', 'Business', 'Enterprise']
const months = ['January', 'March', 'April', 'June', 'July', 'September', 'October', 'December']
const greeting = ['Hi', 'Hello', 'Good morning', 'Dear team', 'Hey']
const closing = ['Thanks', 'Best regards', 'Many thanks', 'Cheers', 'Kind regards']

function extraction(draw: Draw): TaskRow {
  const name = `${draw.of(first)} ${draw.of(last)}`
  const city = draw.of(cities)
  const item = draw.of(items)
  const colour = draw.of(colours)
  const quantity = 1 + draw.int(12)
  const order = `TN-${10_000 + draw.int(90_000)}`
  const month = draw.of(months)
  const day = 1 + draw.int(28)
  const urgent = draw.chance(0.3)
  const wish = draw.of(['delivery', 'return', 'exchange', 'invoice'] as const)
  const sentence = {
    delivery: `please bring ${quantity} ${colour} ${item}s to ${city} by ${day} ${month}`,
    return: `I want to send back ${quantity} ${item}s in ${colour}; pick them up in ${city} on ${day} ${month}`,
    exchange:
      `we need ${quantity} ${item}s swapped for ${colour} ones, our ${city} office is open until ${day} ` + `${month}`,
    invoice: `the invoice for ${quantity} ${colour} ${item}s that went to ${city} on ${day} ${month} is missing`,
  }[wish]
  const text = draw.of([
    `${draw.of(greeting)}, ${sentence}. Order ${order}.${urgent ? ' This is urgent!' : ''} ${draw.of(closing)}, ` +
      `${name}`,
    `${draw.of(greeting)}, this is ${name} about order ${order}: ` +
      `${sentence}.${urgent ? ' We cannot wait any longer.' : ''}`,
    `Order ${order} (${name}): ${sentence}.${urgent ? ' As soon as you can, please.' : ''} ${draw.of(closing)}`,
  ])
  const answer = {
    request: wish,
    customer: { name, city },
    order_number: order,
    items: [{ product: item, colour, quantity }],
    date: `${day} ${month}`,
    urgent,
  }
  return row('Extract the request as JSON.', text, JSON.stringify(answer))
}

function classification(draw: Draw): TaskRow {
  const plan = draw.of(plans)
  const item = draw.of(['report', 'export', 'dashboard', 'invoice', 'mobile app', 'calendar', 'search', 'login page'])
  const city = draw.of(cities)
  const amount = 10 + draw.int(900)
  const kinds = [
    [
      'billing',
      `You charged us ${amount} euros twice for the ${plan} plan`,
      `charged ${amount} euros twice for the ${plan} plan`,
      'finance checks the payments and refunds what was charged too much',
    ],
    [
      'billing',
      `My bill says ${amount} euros although the ${plan} plan costs less`,
      `billed ${amount} euros for the ${plan} plan`,
      'finance compares the bill with the contract',
    ],
    [
      'bug',
      `The ${item} shows an empty page since this morning`,
      `seeing an empty page in the ${item}`,
      'engineering reproduces the fault and repairs it',
    ],
    [
      'bug',
      `Whenever somebody in ${city} opens the ${item}, it stops working`,
      `unable to use the ${item} in ${city}`,
      'engineering reproduces the fault and repairs it',
    ],
    [
      'access',
      `I cannot get into the ${item} any more, it says my account is locked`,
      `locked out of the ${item}`,
      'support verifies the identity and unlocks the account',
    ],
    [
      'access',
      `Our new colleague in ${city} needs the ${plan} seat that we paid for`,
      `waiting for a ${plan} seat in ${city}`,
      'support assigns the seat to the new member',
    ],
    [
      'feature',
      `It would be great if the ${item} could be sorted by date`,
      `asking for a ${item} that is sorted by date`,
      'product adds the wish to the list and answers with a plan',
    ],
    [
      'feature',
      `Could the ${plan} plan have a dark ${item}`,
      `asking for a dark ${item} in the ${plan} plan`,
      'product adds the wish to the list and answers with a plan',
    ],
  ] as const
  const [label, complaint, what, next] = draw.of(kinds)
  const urgent = draw.chance(0.4)
  const name = draw.of(first)
  const text = `${draw.of(greeting)}, ${urgent ? 'urgent: ' : ''}${complaint}. ${draw.of(closing)}, ${name}`
  const answer =
    `Category: ${label}\nPriority: ${urgent ? 'high' : 'normal'}\n` +
    `Reason: ${name} is ${what}, so this belongs to ${label}; ${next}.`
  return row('Classify the message and give a reason.', text, answer)
}

function rewriting(draw: Draw): TaskRow {
  const name = draw.of(first)
  const item = draw.of(items)
  const city = draw.of(cities)
  const day = draw.of(['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday'])
  const hours = 8 + draw.int(10)
  const [plain, formal] = draw.of([
    [
      `the ${item} u ordered wont get to ${city} before ${day}`,
      `the ${item} that you ordered will not arrive in ${city} before ${day}`,
    ],
    [
      `cant do the meeting on ${day}, lets say ${hours} oclock in ${city} the day after`,
      `we are unable to attend the meeting on ${day} and suggest the following day at ${hours} o'clock in ${city}`,
    ],
    [
      `ur ${item} broke, we send a new one to ${city} on ${day}`,
      `your ${item} was damaged, and we will send a replacement to ${city} on ${day}`,
    ],
    [
      `pls tell me if the ${item} fits thru the door in ${city}, need to know by ${day}`,
      `please let us know by ${day} whether the ${item} fits through the door in ${city}`,
    ],
    [
      `we got ur ${item} back but the box from ${city} was open, money comes on ${day}`,
      `we have received your ${item}, although the box from ${city} was open; your refund will be paid on ${day}`,
    ],
    [
      `no one was home in ${city}, the guy comes again ${day} at ${hours} with the ${item}`,
      `nobody was present in ${city}; our driver will deliver the ${item} on ${day} at ${hours} o'clock`,
    ],
  ] as const)
  const sorry = draw.chance(0.5)
  const text = `hey ${name.toLowerCase()}, ${plain}${sorry ? ', sry about that' : ''}`
  const answer =
    `Dear ${name},\n\nThank you for your patience. We would like to inform you that ${formal}.` +
    `${sorry ? ' We apologise for any inconvenience this may cause.' : ''}\n\nKind regards,\nThe customer service team`
  return row('Rewrite the note as a polite letter.', text, answer)
}

const row = (system: string, question: string, answer: string): TaskRow => ({
  messages: [
    { role: 'system', content: system },
    { role: 'user', content: question },
    { role: 'assistant', content: answer },
  ],
})

const makers = { extraction, classification, rewriting }
export const taskNames = Object.keys(makers) as TaskName[]

/** Rows of a task, the same for the same seed. */
export function taskRows(task: TaskName, rows: number, seed: number): TaskRow[] {
  const draw = drawing(seed)
  return Array.from({ length: rows }, () => makers[task](draw))
}
