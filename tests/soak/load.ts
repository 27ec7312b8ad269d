// Clients that use the service while its processes are killed, and record what it acknowledges.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { colourRows } from '../support/client.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'
import type { Ledger } from './ledger.ts'

interface Options {
  /** The service's current URL: each start has another port. */
  url(): string
  key: string
  ledger: Ledger
  random(): number
  /** Reports a violation. */
  fault(text: string): void
}

/** Starts the load; `stop` ends it and waits for its end. */
export function startLoad({ url, key, ledger, random, fault }: Options): { stop(): Promise<void> } {
  let stopped = false
  const pick = <T>(items: readonly T[]): T | undefined => items[Math.floor(random() * items.length)]

  /** Sends one request. Undefined if nothing was acknowledged: the connection broke, or the answer was a 5xx. */
  async function request(
    method: string,
    route: string,
    body?: object | FormData,
    headers: Record<string, string> = {},
    as = key,
  ) {
    try {
      const form = body instanceof FormData
      const response = await fetch(url() + route, {
        method,
        headers: {
          authorization: `Bearer ${as}`,
          ...(body && !form && { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body && { body: form ? body : JSON.stringify(body) }),
      })
      const answer = (await response.json()) as Record<string, string>
      if (response.status >= 500) return undefined
      return { status: response.status, body: answer }
    } catch {
      return undefined
    }
  }

  /** Retries a request with one Idempotency-Key until it is acknowledged. */
  async function create(route: string, body: object) {
    const idempotency_key = randomUUID()
    for (;;) {
      const answer = await request('POST', route, body, { 'idempotency-key': idempotency_key })
      if (answer?.status === 201) return { idempotency_key, body: answer.body }
      // A kill may have lost the answer with a secret that is shown once; the creation is still acknowledged.
      if (answer && JSON.stringify(answer.body).includes('idempotency_key_reused')) return undefined
      // 404: another client may have deleted what it needs.
      if (answer && answer.status !== 404)
        fault(`POST ${route} was answered with ${answer.status}: ${JSON.stringify(answer.body)}`)
      if (answer || stopped) return undefined
      await sleep(50)
    }
  }

  const works: Record<string, () => Promise<void>> = {
    async datasets() {
      const form = new FormData()
      form.append('file', new Blob([colourRows(16)]), 'rows.jsonl')
      const dataset = await request('POST', '/datasets', form)
      if (dataset?.status === 201) ledger.add({ kind: 'dataset', id: dataset.body.id! })
      const used = new Set(ledger.of('dataset_deleted').map(({ id }) => id))
      const old = random() < 0.3 ? pick(ledger.of('dataset').filter(({ id }) => !used.has(id))) : undefined
      if (old) ledger.add({ kind: 'asked_to_delete', id: old.id })
      const gone = old && (await request('DELETE', `/datasets/${old.id}`))
      if (gone?.status === 200) ledger.add({ kind: 'dataset_deleted', id: old!.id })
      await sleep(300)
    },
    async jobs() {
      const ended = new Set(ledger.of('job_ended').map(({ id }) => id))
      const open = ledger.of('job').filter(({ id }) => !ended.has(id))
      for (const { id } of open) {
        const job = await request('GET', `/fine-tuning/jobs/${id}`)
        if (job?.status === 404) fault(`the job ${id} is lost`)
        if (job && ['completed', 'failed', 'cancelled'].includes(job.body.status!))
          ledger.add({ kind: 'job_ended', id, status: job.body.status! })
      }
      if (open.length < 2) {
        const gone = new Set(ledger.of('dataset_deleted').map(({ id }) => id))
        const dataset = ledger.of('dataset').findLast(({ id }) => !gone.has(id))
        const config = { training_config: { epochs: 2 } }
        const job = dataset && (await create('/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.id, config }))
        if (job) ledger.add({ kind: 'job', id: job.body.id!, idempotency_key: job.idempotency_key })
      }
      await sleep(300)
    },
    async keys() {
      const key = await create('/keys', { name: 'soak' })
      if (key) ledger.add({ kind: 'key', id: key.body.id!, key: key.body.key!, idempotency_key: key.idempotency_key })
      const revoked = new Set(ledger.of('key_revoked').map(({ id }) => id))
      const old = random() < 0.5 ? pick(ledger.of('key').filter(({ id }) => !revoked.has(id))) : undefined
      if (old) ledger.add({ kind: 'asked_to_delete', id: old.id })
      const gone = old && (await request('DELETE', `/keys/${old.id}`))
      if (gone?.status === 200) ledger.add({ kind: 'key_revoked', id: old!.id, key: old!.key })
      await sleep(200)
    },
    async deployments() {
      const name = `soak-${randomUUID()}`
      const deployment = await request('POST', '/deployments', { name, model: tiny })
      if (deployment?.status === 201) ledger.add({ kind: 'deployment', name, model: tiny })
      await sleep(1000)
    },
  }
  const chat = async (): Promise<void> => {
    const streams = random() < 0.5
    const max_tokens = 1 + Math.floor(random() * 40)
    const streamOptions = streams && { stream: true, stream_options: { include_usage: true } }
    const body = { model: tiny, messages: [{ role: 'user', content: 'Hello.' }], max_tokens, ...streamOptions }
    const answer = await stream(`${url()}/chat/completions`, key, body).result.catch(() => undefined)
    const whole = answer?.status === 200 && (streams ? answer.done : answer.text.endsWith('}'))
    if (!whole) return sleep(50)
    const { usage } = streams ? answer.events.findLast((event) => event.usage) : JSON.parse(answer.text)
    ledger.add({
      kind: 'answer',
      request_id: String(answer.headers['x-request-id']),
      completion_tokens: usage.completion_tokens,
    })
  }
  const loop = async (work: () => Promise<void>) => {
    while (!stopped) await work()
  }
  const loops = [...Object.values(works), chat, chat, chat].map(loop)
  return {
    async stop() {
      stopped = true
      await Promise.all(loops)
    },
  }
}
