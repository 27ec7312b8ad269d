import { csrfToken } from '../../lib/api.ts'
import type { Operation } from '../../lib/openapi.ts'
import { addressOf, type Draft, isForm } from './samples.ts'

export interface Answer {
  status: number
  statusText: string
  /** Until the answer began. */
  took_ms: number
  headers: [string, string][]
  /** As far as it has come. JSON is indented once it is whole. */
  body: string
  ended: boolean
}

/** The page stays quick with answers of any length. */
const longestBody = 200_000

/** A value of an example that stands for one of the reader's own. */
export const isPlaceholder = (value: string) => value === '' || value.includes('…')

/** Reads, and questions that only look like changes: they are run without asking. */
const harmless = new Set(['estimateJob', 'validateDataset', 'previewDataset'])

export function riskOf({ method, id }: Operation): 'deletes' | 'changes' | undefined {
  if (method === 'DELETE' || id.startsWith('delete')) return 'deletes'
  return method === 'GET' || harmless.has(id) ? undefined : 'changes'
}

/**
 * Sends the request, with the key or else with the session, and tells what has come so far. Throws where the body is
 * not JSON, and where nothing answers.
 */
export async function send(
  operation: Operation,
  draft: Draft,
  {
    key,
    file,
    signal,
    onAnswer,
  }: { key: string; file?: File | undefined; signal: AbortSignal; onAnswer: (answer: Answer) => void },
): Promise<void> {
  const headers = new Headers()
  if (key) headers.set('authorization', `Bearer ${key}`)
  else if (operation.method !== 'GET') headers.set('x-csrf-token', csrfToken() ?? '')
  let body: FormData | string | undefined
  if (isForm(operation)) {
    body = new FormData()
    // Fields come before the file: the service reads the form as it arrives.
    if (operation.id === 'uploadDataset') body.set('name', file!.name.replace(/\.\w+$/, ''))
    const schema = operation.requestBody!.content['multipart/form-data']!.schema!
    body.set(schema.required?.[0] ?? 'file', file!)
  } else if (draft.body !== undefined && draft.body.trim() !== '') {
    try {
      JSON.parse(draft.body)
    } catch (error) {
      throw new Error(`The body is not JSON: ${(error as Error).message}`)
    }
    headers.set('content-type', 'application/json')
    body = draft.body
  }
  const began = performance.now()
  const response = await fetch(addressOf(operation, draft), {
    method: operation.method,
    headers,
    body: body ?? null,
    signal,
    // With a key, the cookie of the session stays at home: the key alone says who asks.
    credentials: key ? 'omit' : 'same-origin',
  })
  const answer: Answer = {
    status: response.status,
    statusText: response.statusText,
    took_ms: performance.now() - began,
    headers: [...response.headers],
    body: '',
    ended: false,
  }
  const type = response.headers.get('content-type') ?? ''
  if (!/json|text/.test(type)) {
    await response.body?.cancel()
    const length = response.headers.get('content-length')
    const words = length ? `${Number(length).toLocaleString('en')} bytes of ${type}` : ''
    return onAnswer({ ...answer, body: words, ended: true })
  }
  onAnswer({ ...answer })
  const decoder = new TextDecoder()
  let told = 0
  for await (const bytes of readAll(response)) {
    answer.body += decoder.decode(bytes, { stream: true })
    if (answer.body.length > longestBody) {
      answer.body = `${answer.body.slice(0, longestBody)}\n… The rest is not shown.`
      break
    }
    if (performance.now() - told < 100) continue
    told = performance.now()
    onAnswer({ ...answer })
  }
  onAnswer({ ...answer, body: pretty(answer.body, type), ended: true })
}

async function* readAll(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body!.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      yield value
    }
  } finally {
    // A reader that stops early wants no more.
    await reader.cancel().catch(() => {})
  }
}

function pretty(body: string, type: string): string {
  if (!type.startsWith('application/json')) return body
  try {
    return JSON.stringify(JSON.parse(body), null, 2)
  } catch {
    return body
  }
}
