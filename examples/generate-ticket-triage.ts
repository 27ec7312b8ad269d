// Generates the demo's dataset: support tickets, each with its triage as a JSON object.
//
//   scripts/node examples/generate-ticket-triage.ts [--seed 42] [--rows 210] [--held-out 100] [--out examples]
//
// The rules for each field:
//   category     "billing": money; "bug": something fails; "access": logging in or permissions; "feature": something
//                missing is requested; "question": how or whether something works
//   priority     "high": work is blocked or the deadline is today or tomorrow; "low": the writer is in no hurry;
//                else "normal"
//   product      the product that the request is about
//
// Held-out rows are texts and names, and sometimes phrasings, that no training row has: a part of every list is
// reserved for them.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { around } from './tickets/around.ts'
import { Random } from './tickets/random.ts'
import { products, requests } from './tickets/requests.ts'

type Category = keyof typeof requests
type Product = keyof typeof products
type Around = keyof typeof around
/** The phrasings that a row is made of. */
type Lists = { requests: Record<Category, string[]>; around: Record<Around, string[]> }
type Ticket = { text: string; answer: { category: string; priority: string; product: string } }

/** Share of every list that is reserved for held-out rows, and how often a part of a held-out row comes from it. */
const HELD_OUT_SHARE = 0.15
const RESERVED_CHANCE = 0.03

const categories = Object.keys(requests) as Category[]

/** Maps the values of a record. */
function mapped<Key extends string, From, To>(record: Record<Key, From>, change: (value: From) => To): Record<Key, To> {
  return Object.fromEntries(Object.entries<From>(record).map(([key, value]) => [key, change(value)])) as Record<Key, To>
}

/** Splits every list of phrasings: for training rows, and for held-out rows only. Product names are in both. */
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

/** Lists for one held-out row, each from the reserved or the common part; names always from the reserved part. */
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

/** Adds typing errors: swapped or dropped letters, lower case, missing full stops. Keeps digits and short words. */
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
  // Sometimes the surrounding text comes first.
  const shuffled = random.shuffled(extras)
  const first = random.chance(0.25) ? shuffled.splice(0, 1) : []
  const sentences = [...first, request, ...shuffled].map((sentence) => fill(sentence, random, name))

  let body = sentences.join(' ')
  if (random.chance(0.2)) body = misspell(body, random)
  const opening = random.chance(0.25) ? `${random.pick(say.greetings)} ` : ''
  const closing = random.chance(0.2) ? `\n${random.pick(say.signOffs)} ${random.pick(say.names)}` : ''
  return { text: opening + body + closing, answer: { category, priority, product } }
}

/** `count` different tickets, equally many of each category. */
function tickets(count: number, random: Random, lists: () => Lists, usedTexts: Set<string>): Ticket[] {
  const tickets: Ticket[] = []
  while (tickets.length < count) {
    const next = ticket(lists(), random, categories[tickets.length % categories.length] as Category)
    if (usedTexts.has(next.text)) continue
    usedTexts.add(next.text)
    tickets.push(next)
  }
  return random.shuffled(tickets)
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
const usedTexts = new Set<string>()
const training = tickets(Number(values.rows), random, () => common, usedTexts)
const heldOut = tickets(Number(values['held-out']), random, () => mixed(common, reserved, random), usedTexts)
writeFileSync(join(values.out, 'ticket-triage.jsonl'), lines(training))
writeFileSync(join(values.out, 'ticket-triage.heldout.jsonl'), lines(heldOut))
