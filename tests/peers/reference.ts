// The trainer's answers, which those of other runtimes are compared with.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { trainAdapter } from '../../bench/support/adapters.ts'
import { startService } from '../../bench/support/service.ts'

interface Message {
  role: string
  content: string
}

export interface Reference {
  messages: Message[]
  prompt_tokens: number[]
  answer_tokens: number[]
  answer: string
  log_probabilities: number[]
}

/** A service with a tuned adapter, deployed under the guides' name. */
export async function serviceWithTickets() {
  const service = await startService()
  const model = await trainAdapter(service.api, 0)
  await service.api('POST', '/deployments', { model, name: 'tickets' })
  return {
    ...service,
    /** The trainer's answers, computed by the first export. */
    reference: () =>
      (
        JSON.parse(readFileSync(path.join(service.dataDir, 'models', model, 'answers.json'), 'utf8')) as {
          rows: Reference[]
        }
      ).rows,
  }
}

// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
export async function post(url: string, body: object): Promise<any> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${await response.text()}`)
  return response.json()
}

export const meanDifference = (pairs: [number, number][]) =>
  pairs.reduce((sum, [one, other]) => sum + Math.abs(one - other), 0) / Math.max(1, pairs.length)
