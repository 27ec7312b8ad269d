import { setTimeout as sleep } from 'node:timers/promises'
import type { Export } from '../../contract/exports.ts'
import type { Job, JobEvent } from '../../contract/fine-tuning.ts'

// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
export type Answer = { status: number; headers: Headers; body: any }

/** A small API client for one key. It never throws for an error status. */
export function client(url: string, key: string) {
  async function api(
    method: string,
    route: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer> {
    const raw = typeof body === 'string' || body instanceof FormData || body instanceof Uint8Array
    const response = await fetch(url + route, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body !== undefined && !(body instanceof FormData) && { 'content-type': 'application/json' }),
        ...headers,
      },
      body: body === undefined ? null : raw ? (body as string) : JSON.stringify(body),
    })
    const text = await response.text()
    return { status: response.status, headers: response.headers, body: text.startsWith('{') ? JSON.parse(text) : text }
  }

  const upload = (
    content: string | Uint8Array<ArrayBuffer>,
    fields: Record<string, string> = {},
    filename = 'rows.jsonl',
  ) => {
    const form = new FormData()
    form.set('file', new Blob([content]), filename)
    for (const [name, value] of Object.entries({ name: 'rows', ...fields })) form.set(name, value)
    return api('POST', '/datasets/', form)
  }

  /** The events of a job or an export. */
  async function* events(id: string, after = 0): AsyncGenerator<JobEvent> {
    const what = id.startsWith('exp_') ? 'exports' : 'fine-tuning/jobs'
    const response = await fetch(`${url}/${what}/${id}/events?after=${after}`, {
      headers: { authorization: `Bearer ${key}` },
    })
    let rest = ''
    for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split('\n')
      rest = lines.pop()!
      for (const line of lines) if (line) yield JSON.parse(line)
    }
  }

  const job = async (id: string): Promise<Job> => (await api('GET', `/fine-tuning/jobs/${id}`)).body

  return {
    api,
    upload,
    events,
    job,
    /** Reads a job's events until one matches; throws if the stream ends first. */
    async untilEvent(job_id: string, matches: (event: JobEvent) => boolean): Promise<JobEvent> {
      const seen: string[] = []
      for await (const event of events(job_id)) {
        if (matches(event)) return event
        seen.push(`${event.type}: ${event.message}`)
      }
      throw new Error(`the stream ended without that event; its events:\n${seen.join('\n')}`)
    },
    async untilEnded(id: string): Promise<Job> {
      for await (const _ of events(id));
      return job(id)
    },
    /** Creates an export and waits for its end. */
    async exported(body: object): Promise<Export> {
      const created = await api('POST', '/exports', body)
      if (created.status !== 201) throw new Error(JSON.stringify(created.body))
      for await (const _ of events(created.body.id));
      return (await api('GET', `/exports/${created.body.id}`)).body
    },
    /** Trains a tiny model on colours. */
    async trainColourModel(config: object = {}): Promise<string> {
      const dataset_id = (await upload(colourRows(16))).body.id
      const training_config = { epochs: 12, batch_size: 4, learning_rate: 0.02 }
      const { body } = await api('POST', '/fine-tuning/jobs', {
        model_id: 'test/tiny',
        dataset_id,
        config: { training_config, ...config },
      })
      for await (const _ of events(body.id));
      const ended = await job(body.id)
      if (!ended.model) throw new Error(JSON.stringify(ended.error))
      return ended.model
    },
  }
}
export type Client = ReturnType<typeof client>

/** Waits until a condition holds. Throws after three minutes: a trainer has a low priority on a busy machine. */
export async function until<T>(what: string, condition: () => T | Promise<T>): Promise<NonNullable<T>> {
  const started = Date.now()
  for (;;) {
    const value = await condition()
    if (value) return value
    const waited_ms = Date.now() - started
    if (waited_ms > 180_000) throw new Error(`waited three minutes for: ${what}`)
    // What takes long is asked about less often: each look at the API takes from what it waits for.
    await sleep(waited_ms < 2000 ? 25 : 100)
  }
}

/** Rows that a tiny model can learn: a code for each colour. */
export function colourRows(count: number): string {
  const colours = ['red', 'green', 'blue', 'white', 'black', 'pink', 'grey', 'brown']
  return Array.from({ length: count }, (_, index) => {
    const colour = colours[index % colours.length]
    return JSON.stringify({
      messages: [
        { role: 'user', content: `code of ${colour}?` },
        { role: 'assistant', content: `${colour}-${index % colours.length}` },
      ],
    })
  }).join('\n')
}
