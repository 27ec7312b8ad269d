// Writes the demo's task: support tickets, and what a triage desk notes about each as one JSON object.
//
//   scripts/node examples/generate-ticket-triage.ts [--seed 42] [--rows 210] [--held-out 100] [--out examples]
//
// The rules by which a person can decide each field from the text:
//   category     what the writer is after: money matters are "billing"; something that fails is "bug"; getting in is "access"; a wish
//                for what is not there is "feature"; how or whether something is done is "question"
//   priority     "high" if the writer says that work stands still or names a limit of today or tomorrow; "low" if the writer says
//                that there is time; otherwise "normal"
//   product      the one that the request is about
//
// The held-out rows are whole texts, names and now and then phrasings that no training row has: a part of every list is
// kept for them.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { around } from './tickets/around.ts'
import { Random } from './tickets/random.ts'
import { products, requests } from './tickets/requests.ts'

type Category = keyof typeof requests
type Product = keyof typeof products
type Around = keyof typeof around
/** What a row may be made of. */
type Lists = { requests: Record<Category, string[]>; around: Record<Around, string[]> }
type Ticket = { text: string; answer: { category: string; priority: string; product: string } }

/**
 * The share of every list that only held-out rows use, and how likely each part of a held-out row is to be drawn from
 * it.
 */
const HELD_OUT_SHARE = 0.15
const RESERVED_CHANCE = 0.03

const categories = Object.keys(requests) as Category[]

/** A new record of the same keys. */
function mapped<Key extends string, From, To>(record: Record<Key, From>, change: (value: From) => To): Record<Key, To> {
  return Object.fromEntries(Object.entries<From>(record).map(([key, value]) => [key, change(value)])) as Record<Key, To>
}

/**
 * Splits every list of phrasings in two: what training rows may say, and what only held-out rows say. Products' names
 * are for both.
 */
function splitPhrases(random: Random): { common: Lists; reserved: Lists } {
  const halves = (list: string[]) => {
    const shuffled = random.shuffled(list)
    const cut = Math.round(list.length * HELD_OUT_SHARE)
    return { common: shuffled.slice(cut), reserved: shuffled.slice(0, cut) }
  }
  const split = { requests: mapped(requests, halves), around: mapped(around, halves) }
  const side = (which: 'common' | 'reserved'): Lists => ({
    requests: mapped(split.requests, (both) => both[which]),
    around: mapped(split.around, (both) => both[which]),
  })
  return { common: side('common'), reserved: side('reserved') }
}

/** Lists for one held-out row: each from the reserved or the common part, names always from the reserved one. */
function mixed(common: Lists, reserved: Lists, random: Random): Lists {
  const mix = { ...common.around }
  for (const kind of Object.keys(mix) as Around[])
    if (kind === 'names' || random.chance(RESERVED_CHANCE)) mix[kind] = reserved.around[kind]
  return { requests: random.chance(RESERVED_CHANCE) ? reserved.requests : common.requests, around: mix }
}

function fill(text: string, random: Random, product: string): string {
  const values: Record<string, () => string> = {
    p: () => product,
    n: () => String(random.between(2, 40)),
    few: () => String(random.between(2, 6)),
    hour: () => String(random.between(1, 12)),
    money: () =>
      random.pick(['€', '$', '£']) +
      random.pick([`${random.between(5, 290)}`, `${random.between(5, 99)}.${random.between(10, 99)}`]),
    day: () =>
      random.pick([
        'Monday',
        'Tuesday',
        'Friday',
        `${random.between(2, 28)} March`,
        `June ${random.between(2, 28)}`,
        'the 3rd',
      ]),
    version: () => `${random.between(1, 9)}.${random.between(0, 19)}`,
    code: () => random.pick(['A', 'E', 'K', 'PO-', '#']) + random.between(100, 9999),
  }
  const chosen = text.replace(/\(([^)]*)\)/g, (_, options: string) => random.pick(options.split('|')))
  const filled = chosen.replace(/\{(\w+)\}/g, (_, slot: string) => values[slot]?.() ?? '')
  return filled.charAt(0).toUpperCase() + filled.slice(1)
}

/**
 * Writes as people type in a hurry: swapped or dropped letters, lower case, missing stops. Digits and short words stay.
 */
function misspell(text: string, random: Random): string {
  const words = text.split(' ').map((word) => {
    if (!/^[a-z]{5,}$/.test(word) || !random.chance(0.12)) return word
    const at = random.between(1, word.length - 3)
    return random.chance(0.5)
      ? word.slice(0, at) + word[at + 1] + word[at] + word.slice(at + 2)
      : word.slice(0, at) + word.slice(at + 1)
  })
  const joined = words.join(' ')
  return random.chance(0.4) ? joined.toLowerCase() : joined
}

function ticket({ requests, around: say }: Lists, random: Random, category: Category): Ticket {
  const product = random.pick(Object.keys(products) as Product[])
  const name = random.pick(products[product])
  const priority = random.pick(['high', 'high', 'low', 'low', 'normal'])

  const request = random.pick(requests[category])
  const extras: string[] = []
  if (priority !== 'normal') extras.push(random.pick(priority === 'high' ? say.high : say.low))
  if (random.chance(0.2)) extras.push(random.pick(say.asides))
  // Sometimes what surrounds the request comes first.
  const shuffled = random.shuffled(extras)
  const first = random.chance(0.25) ? shuffled.splice(0, 1) : []
  const sentences = [...first, request, ...shuffled].map((sentence) => fill(sentence, random, name))

  let body = sentences.join(' ')
  if (random.chance(0.2)) body = misspell(body, random)
  const opening = random.chance(0.25) ? `${random.pick(say.greetings)} ` : ''
  const closing = random.chance(0.2) ? `\n${random.pick(say.signOffs)} ${random.pick(say.names)}` : ''
  return { text: opening + body + closing, answer: { category, priority, product } }
}

/** `count` different tickets, the categories in equal shares. */
function tickets(count: number, random: Random, lists: () => Lists, taken: Set<string>): Ticket[] {
  const made: Ticket[] = []
  while (made.length < count) {
    const next = ticket(lists(), random, categories[made.length % categories.length] as Category)
    if (taken.has(next.text)) continue
    taken.add(next.text)
    made.push(next)
  }
  return random.shuffled(made)
}

function lines(rows: Ticket[]): string {
  const messages = ({ text, answer }: Ticket) => [
    { role: 'system', content: 'Triage the ticket.' },
    { role: 'user', content: text },
    { role: 'assistant', content: JSON.stringify(answer) },
  ]
  return rows.map((row) => `${JSON.stringify({ messages: messages(row) })}\n`).join('')
}

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '42' },
    rows: { type: 'string', default: '210' },
    'held-out': { type: 'string', default: '100' },
    out: { type: 'string', default: import.meta.dirname },
  },
})
const random = new Random(Number(values.seed))
const { common, reserved } = splitPhrases(random)
const taken = new Set<string>()
const training = tickets(Number(values.rows), random, () => common, taken)
const heldOut = tickets(Number(values['held-out']), random, () => mixed(common, reserved, random), taken)
writeFileSync(join(values.out, 'ticket-triage.jsonl'), lines(training))
writeFileSync(join(values.out, 'ticket-triage.heldout.jsonl'), lines(heldOut))
