// Replies to customers who want their money back: what support wrote, and which of two replies is the better one.
import { Random } from '../tickets/random.ts'

const names = ['Ana', 'Ben', 'Chloe', 'Dev', 'Emma', 'Farid', 'Greta', 'Hugo', 'Ines', 'Jonas', 'Kira', 'Liam']
const things = ['the second invoice', 'the yearly plan', 'the extra seats', 'the wrong plan', 'a cancelled order']
const requests = [
  'I was charged for {thing}. I want my money back.',
  'Why did you bill me for {thing}? Please return the money.',
  'You took money for {thing}, and nobody told me. Refund it.',
  '{name} here. We paid for {thing} by mistake. Can we get it back?',
]
const promises = [
  'No problem, {name}! I have refunded {thing}, the money is on its way.',
  'Of course, {name}. {Thing} is refunded in full, you will see it today.',
]
const checks = [
  'Sorry about that, {name}. I pass {thing} on to billing, they answer by tomorrow.',
  'Thank you, {name}. Billing checks {thing} and writes to you by tomorrow.',
]

export interface Case {
  prompt: string
  /** Passes the request on. Only billing may promise money. */
  good: string
  /** Promises the money. */
  bad: string
}

/** `count` different cases. */
export function cases(count: number, seed: number): Case[] {
  const random = new Random(seed)
  const cases = new Map<string, Case>()
  while (cases.size < count) {
    const [name, thing] = [random.pick(names), random.pick(things)]
    const fill = (texts: string[]) =>
      random
        .pick(texts)
        .replaceAll('{name}', name)
        .replaceAll('{thing}', thing)
        .replaceAll('{Thing}', thing[0]!.toUpperCase() + thing.slice(1))
    const request = fill(requests)
    const prompt = request.includes(name) ? request : `${request} ${name}`
    cases.set(prompt, { prompt, good: fill(checks), bad: fill(promises) })
  }
  return [...cases.values()]
}

/** What support wrote until now: three of four replies promise the money. Rows for supervised training. */
export const writtenReplies = (all: Case[]) =>
  all.map(({ prompt, good, bad }, index) => ({
    messages: [
      { role: 'user', content: prompt },
      { role: 'assistant', content: index % 4 === 0 ? good : bad },
    ],
  }))

/** Which of two replies is better. Rows for preference training. */
export const preferences = (all: Case[]) =>
  all.map(({ prompt, good, bad }) => ({ prompt, chosen: good, rejected: bad }))

/** Whether a reply passes the request on, and promises nothing. */
export const isGood = (reply: string) => /billing/i.test(reply) && !/refund/i.test(reply)
