// Prompts made from a seed, so that both sides get the same ones and no prompt repeats on one side.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { seededRandom } from '../../tests/support/random.ts'
import { root } from './servers.ts'

const words = [
  'time year people way day man thing woman life child world school state family student group country problem hand',
  'part place case week company system program question work night point home water room mother area money story',
  'fact month lot right study book eye job word business issue side kind head house service friend father power',
  'hour game line end member law car city community name',
].flatMap((line) => line.split(' '))

/** Text of nearly this many tokens: each word is one token of the default model. Texts share no prefix. */
export function text(tokens: number, seed: number): string {
  const next = seededRandom(seed * 7919 + 1)
  return Array.from({ length: tokens }, () => words[Math.floor(next() * words.length)]!).join(' ')
}

export const user = (content: string | object[]) => ({ messages: [{ role: 'user', content }] })

interface Ticket {
  messages: { role: string; content: string }[]
}
const tickets = (file: string): Ticket[] =>
  readFileSync(path.join(root, 'examples', file), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))

/** The demo's extraction (ticket to JSON): eight examples, then a held-out ticket. */
export function extraction(index: number) {
  const examples = tickets('ticket-triage.jsonl').slice(0, 8)
  const heldOut = tickets('ticket-triage.heldout.jsonl')
  const question = heldOut[index % heldOut.length]!
  const system = question.messages.filter(({ role }) => role === 'system')
  const turns = (row: Ticket) => row.messages.filter(({ role }) => role !== 'system')
  return { messages: [...system, ...examples.flatMap(turns), ...turns(question).slice(0, -1)] }
}
